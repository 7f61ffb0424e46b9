"""Passes connections on to one address.

Runs on the host, and by itself inside the container of a closed network's proxy (Python 3.9 or newer,
standard library only): ``python3 -c <this text> <port> <host> <port>``.
"""

import asyncio
import sys

CHUNK = 64 * 1024


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


async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
    """Pass one connection on."""
    try:
        there, back = await asyncio.open_connection(host, port)
    except OSError:
        writer.close()
        return
    try:
        await asyncio.gather(pipe(reader, back), pipe(there, writer))
    finally:
        back.close()
        writer.close()


async def main(port: int, host: str, target: int) -> None:
    """Serve for ever."""

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await join(reader, writer, host, target)

    server = await asyncio.start_server(client, "0.0.0.0", port)  # noqa: S104 - in a container of its own
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
