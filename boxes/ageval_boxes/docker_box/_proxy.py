"""The way out of a box with ``egress: llm``: an HTTP proxy that knows a list of hosts.

Runs by itself inside a container of its own (Python 3.9 or newer, standard library only):
``python3 -c <this text> <port> <host:port> ...``. ``*.example.org`` stands for every name below it,
``[10.0.0.0/8]`` for the addresses of a network. No name is resolved to find out whether it is one of them.
"""

import asyncio
import ipaddress
import sys
from urllib.parse import urlsplit

HEAD_SECONDS = 30
HEAD_BYTES = 64 * 1024
CHUNK = 64 * 1024


def allowed(host: str, port: int, rules: "list[tuple[str, int]]") -> bool:
    """Some rule names this host and port."""
    name = host.lower().rstrip(".")
    return any(port == number and matches(name, rule) for rule, number in rules)


def matches(name: str, rule: str) -> bool:
    """`rule` is the name, a pattern for it, or a network with this address."""
    if "/" in rule:
        try:
            return ipaddress.ip_address(name) in ipaddress.ip_network(rule)
        except ValueError:
            return False  # a name
    return name.endswith(rule[1:]) if rule.startswith("*.") else name == rule


def parse(words: "list[str]") -> "list[tuple[str, int]]":
    """Rules from ``host:port`` words."""
    pairs = (word.rpartition(":") for word in words)
    return [(host.lower().strip("[]"), int(port)) for host, _, port in pairs]


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy to the end, then say that nothing more comes."""
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except (OSError, RuntimeError):
        writer.close()


async def refuse(writer: asyncio.StreamWriter, status: str, words: str) -> None:
    """Answer with an error."""
    body = f"ageval: {words}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
    await writer.drain()


async def serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rules: "list[tuple[str, int]]"
) -> None:
    """One connection of a client: a tunnel (CONNECT), or one plain request."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_SECONDS)
    first, _, rest = head.partition(b"\r\n")
    method, target, version = first.decode("latin-1").split(" ", 2)
    if method == "CONNECT":
        parts, default = urlsplit(f"//{target}"), 443
    else:
        parts, default = urlsplit(target), 80
    host, port = parts.hostname or "", parts.port or default
    if not allowed(host, port, rules):
        sys.stdout.write(f"refused {host}:{port}\n")
        sys.stdout.flush()
        await refuse(writer, "403 Forbidden", f"{host}:{port} is not on the list of this box")
        return
    try:
        there, back = await asyncio.open_connection(host, port)
    except OSError as error:
        await refuse(writer, "502 Bad Gateway", f"{host}:{port}: {error}")
        return
    try:
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            # One request for each connection: the next one may be for another host.
            kept = [
                line
                for line in rest.split(b"\r\n")
                if line and not line.lower().startswith((b"proxy-", b"connection:", b"keep-alive:"))
            ]
            request = [f"{method} {path} {version}".encode("latin-1"), *kept, b"Connection: close"]
            back.write(b"\r\n".join(request) + b"\r\n\r\n")
        await asyncio.gather(pipe(reader, back), pipe(there, writer))
    finally:
        back.close()


async def main(port: int, rules: "list[tuple[str, int]]") -> None:
    """Serve for ever."""

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer, rules)
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            pass  # a client that does not speak the protocol, or went away
        finally:
            writer.close()

    server = await asyncio.start_server(client, "0.0.0.0", port, limit=HEAD_BYTES)  # noqa: S104
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), parse(sys.argv[2:])))
