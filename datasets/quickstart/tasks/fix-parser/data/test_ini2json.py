"""Some of what FORMAT.md says. Run with: python3 -m unittest"""

import json
import subprocess
import sys
import unittest


def convert(text):
    """Run the program on `text`."""
    return subprocess.run(
        [sys.executable, "ini2json.py"], input=text, capture_output=True, text=True, timeout=10
    )


class Format(unittest.TestCase):
    """One test for a few of the rules."""

    def same(self, text, expected):
        done = convert(text)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout), expected)

    def test_sections(self):
        self.same("a = 1\n[server]\nhost = example\n", {"a": 1, "server": {"host": "example"}})

    def test_comments(self):
        self.same("# one\n; two\na = x # three\n", {"a": "x"})

    def test_false_is_false(self):
        self.same("debug = false\n", {"debug": False})

    def test_equals_sign_in_a_value(self):
        self.same("query = a=b\n", {"query": "a=b"})

    def test_error_names_the_line(self):
        done = convert("a = 1\n\nnonsense\n")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertTrue(done.stderr.startswith("line 3:"), done.stderr)


if __name__ == "__main__":
    unittest.main()
