"""Print a configuration file as JSON. See FORMAT.md."""

import json
import re
import sys

QUOTED = re.compile(r'"((?:[^"\\]|\\["\\n])*)"\s*(?:#.*)?')
INTEGER = re.compile(r"-?[0-9]+")
ESCAPES = {'\\"': '"', "\\\\": "\\", "\\n": "\n"}


class FormatError(Exception):
    """A line that is not allowed."""


def parse(text):
    """Return the configuration in `text` as nested dictionaries."""
    result = {}
    section = result
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        try:
            if line[0] == "[":
                section = open_section(result, line)
            else:
                key, value = split(line)
                section[key] = convert(value)
        except FormatError as error:
            raise FormatError(f"line {number}: {error}") from None
    return result


def open_section(result, line):
    """Return the object of the section that `line` names, made if it is new."""
    names = [name.strip() for name in line[1:-1].split(".")]
    if line[-1] != "]" or not all(names):
        raise FormatError("not a section name")
    for name in names:
        result = result.setdefault(name, {})
        if not isinstance(result, dict):
            raise FormatError(f"{name} is a key already")
    return result


def split(line):
    """Return key and value text."""
    key, sign, value = line.partition("=")
    if not sign or not key.strip():
        raise FormatError("neither a section nor a key")
    return key.strip(), value.strip()


def convert(value):
    """Return the value that a piece of text stands for."""
    if value.startswith('"'):
        match = QUOTED.fullmatch(value)
        if match is None:
            raise FormatError("not a quoted value")
        return re.sub(r'\\["\\n]', lambda found: ESCAPES[found[0]], match[1])
    value = re.split(r"(?:^|\s)#", value, maxsplit=1)[0].strip()
    if value in ("true", "false"):
        return value == "true"
    return int(value) if INTEGER.fullmatch(value) else value


def main():
    """Read standard input, write standard output."""
    try:
        result = parse(sys.stdin.read())
    except FormatError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
