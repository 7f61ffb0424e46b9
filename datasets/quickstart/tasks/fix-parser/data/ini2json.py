"""Print a configuration file as JSON. See FORMAT.md."""

import json
import sys


class FormatError(Exception):
    """A line that is not allowed."""


def parse(text):
    """Return the configuration in `text` as nested dictionaries."""
    result = {}
    section = result
    number = 0
    for line in text.splitlines():
        line = line.strip()
        if not line or line[0] == "#":
            continue
        number += 1
        if line.startswith("[") and line.endswith("]"):
            section = {}
            result[line[1:-1].strip()] = section
        elif "=" in line:
            key, value = line.rsplit("=", 1)
            section[key.strip()] = convert(value)
        else:
            raise FormatError(f"line {number}: neither a section nor a key")
    return result


def convert(value):
    """Return the value that a piece of text stands for."""
    value = value.split("#")[0].strip()
    if value.startswith('"'):
        return value.strip('"')
    if value in ("true", "false"):
        return bool(value)
    if value.isdigit():
        return int(value)
    return value


def main():
    """Read standard input, write standard output."""
    try:
        print(json.dumps(parse(sys.stdin.read()), indent=2))
    except FormatError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
