"""What runs in a remote box around a command: POSIX shell, for a machine of which we know little.

A vendor's interface may merge streams, decode them as text, or hold a reply back for ever because a
descendant keeps a stream open. So a small supervisor in the box starts each command in a session of
its own with a cookie in its environment, keeps the streams itself, and reports in lines of ASCII.
It needs ``sh``, coreutils, ``grep``, ``awk``, ``tar`` and ``setsid``; all of it also as busybox has it.

A report's lines begin with a token, so that what a login shell prints is not taken for one.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ageval_boxes._processes import COOKIE
from pytest_ageval.box import STREAM_LIMIT

#: The longest command line that is sent as it is; the kernel takes 128 KiB in one argument.
INLINE_LIMIT = 60_000

#: The programs that must be in the box.
TOOLS = tuple(
    "awk base64 cat cut dd env grep head mkfifo mv rm setsid sleep tail tar tr wc".split()  # noqa: SIM905
)

# The pump of a command that runs to its end: $1.0 holds the beginning of the stream, of what follows
# the last two pieces are kept; "$1.n" says which is the last and how many bytes came before it.
_KEEP = """
pump() {
  k=0; base=0; size=0; : > "$1.0"; echo "0 0" > "$1.n"
  while :; do
    dd bs=65536 count=64 2>/dev/null >> "$1.$k"
    now=$(wc -c < "$1.$k")
    [ "$now" -eq "$size" ] && break
    size=$now
    [ "$size" -ge HALF ] || continue
    base=$((base + size)); k=$((k + 1)); size=0
    : > "$1.$k"; echo "$k $base" > "$1.n"
    [ "$k" -gt 2 ] && rm -f "$1.$((k - 2))"
  done
  : > "$1.done"
}
state() { read -r k base < "$1.n" && echo "$k $(wc -c < "$1.$k")"; }
show() {
  read -r k base < "$1.n"
  total=$((base + $(wc -c < "$1.$k")))
  printf '%s %s %s ' "$token" "$1" "$total"
  {
    if [ "$total" -le LIMIT ]; then
      i=0; while [ "$i" -le "$k" ]; do cat "$1.$i"; i=$((i + 1)); done
    else
      head -c HALF "$1.0"
      if [ "$k" -gt 0 ]; then cat "$1.$((k - 1))" "$1.$k"; else cat "$1.0"; fi | tail -c HALF
    fi
  } | base64 | tr -d '\\n'
  printf '\\n\\n\\n'
}
""".replace("LIMIT", str(STREAM_LIMIT)).replace("HALF", str(STREAM_LIMIT // 2))

# The pump of an attached process: each chunk is a line as soon as it is there.
_STREAM = """
pump() {
  i=0
  while :; do
    i=$((i + 1)); echo "r$i" > "$1.s"
    x=$(dd bs=49152 count=1 2>/dev/null | base64 | tr -d '\\n')
    [ -n "$x" ] || break
    echo "w$i" > "$1.s"
    say "$1 $x"
  done
  : > "$1.done"
}
state() { cat "$1.s"; }
"""

# A pump ends when every holder of the stream is gone. When the command is, and the pump has waited for
# a fifth of a second, or worked for about one without having to wait for us ("w"), whoever else holds
# the stream goes on without being heard.
_DRAIN = """
drain() {
  last=; same=0; looks=0
  while [ ! -e "$1.done" ]; do
    sleep 0.02
    now=$(state "$1")
    case $now in
      w*) same=0;;
      "$last") same=$((same + 1)); looks=$((looks + 1));;
      *) same=0; last=$now; looks=$((looks + 1));;
    esac
    [ "$same" -ge 10 ] || [ "$looks" -ge 40 ] || continue
    (exec cat < "$1f" > /dev/null &)
    kill -9 "$2"
    break
  done
}
"""

_BEGIN = """
mask=$(umask); umask 077
mkdir -p "$d" && cd "$d" && mkfifo of ef || { say "! no place for temporary files at $d"; exit 0; }
echo $$ > pid
umask "$mask"
finish() { cd /; rm -rf "$d"; }
"""

_FIND = """
find_all() {
  seeds=$(grep -lsaF -- "$needle" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 | tr '\\n' ' ')
  cat /proc/[0-9]*/stat 2>/dev/null | awk -v seeds="$seeds" '
    { pid = $1; sub(/^.*\\) /, ""); if ($1 ~ /[ZXx]/) next; parent[pid] = $2; session[pid] = $4 }
    END {
      n = split(seeds, s, " ")
      for (i = 1; i <= n; i++) if (s[i] in parent) {
        found[s[i]] = 1; if (session[s[i]] != 0) in_s[session[s[i]]] = 1
      }
      do {
        more = 0
        for (p in parent) if (!(p in found) && ((parent[p] in found) || (session[p] in in_s))) {
          found[p] = 1; if (session[p] != 0) in_s[session[p]] = 1; more = 1
        }
      } while (more)
      for (p in found) print p
    }'
}
name_of() { tr '\\0\\n' '  ' < "/proc/$1/cmdline" 2>/dev/null | head -c 120; }
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the supervisor of command `number` of box `box_id` keeps its files, and its cookie."""

    box_id: str
    number: int

    @property
    def directory(self) -> str:
        """In the box."""
        return f"{directory_of(self.box_id)}/{self.number}"

    @property
    def cookie(self) -> str:
        """The value of the variable by which its processes are found."""
        return f"{self.box_id}:{self.number}:"


def directory_of(box_id: str) -> str:
    """Where the supervisors and copies of a box keep their files, in the box."""
    return f"/tmp/.ageval-{box_id}"  # noqa: S108 - in the box


def _begin(token: str) -> str:
    # A client may hold the last two bytes of a piece back until more comes: hence the empty lines.
    return f"token={shlex.quote(token)}; say() {{ printf '%s\\n\\n\\n' \"$token $1\"; }}\n"


def _leader(place: Place, argv: Sequence[str], env: Mapping[str, str]) -> str:
    settings = {**env, COOKIE: place.cookie}
    words = ["env", *(f"{name}={value}" for name, value in settings.items())]
    # The inner shell takes an "=" in the command's name for what it is, and gives the usual exit codes.
    words += ["sh", "-c", 'exec "$@"', "sh", *argv]
    return "setsid " + " ".join(map(shlex.quote, words))


def _supervisor(place: Place, token: str, pumps: str, parts: Mapping[str, str]) -> str:
    out, err = parts["out"], parts["err"]
    return (
        f"{_begin(token)}d={shlex.quote(place.directory)}\n{_BEGIN}{pumps}{_DRAIN}"
        f'cd -- {shlex.quote(parts["cwd"])} 2>/dev/null || {{ say "C"; finish; exit 0; }}\n'
        f'exec 3<&0; o="$d/of"; e="$d/ef"\n'
        f'(cd "$d"; pump o < of {out} 2>/dev/null) 3<&- & po=$!\n'
        f'(cd "$d"; pump e < ef {err} 2>/dev/null) 3<&- & pe=$!\n'
        f'{parts["stdin_before"]}{parts["leader"]} {parts["stdin"]} > "$o" 2> "$e" 3<&- & leader=$!\n'
        f'{parts["begun"]}exec < /dev/null 3<&-\ncd "$d"\n'
        f'wait "$leader"; code=$?\ndrain o "$po" 2>/dev/null; drain e "$pe" 2>/dev/null\n'
    )


def run_to_end(
    place: Place, token: str, argv: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: str | None
) -> str:
    """The script that runs `argv` and reports its exit code and the ends of its streams.

    `stdin` is a file in the box, removed afterwards.
    """
    source = "/dev/null" if stdin is None else shlex.quote(stdin)
    after = "" if stdin is None else f"rm -f {source}\n"
    parts = {
        "cwd": cwd, "out": "", "err": "", "begun": "", "stdin_before": "", "stdin": f"< {source}",
        "leader": _leader(place, argv, env),
    }  # fmt: skip
    body = _supervisor(place, token, _KEEP, parts)
    return f'{body}{after}show o; show e; say "X $code"; finish\n'


def attach(
    place: Place,
    token: str,
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    encoded_stdin: bool,
) -> str:
    """The script that runs `argv` on our standard streams: stdin as it is, or in lines of base64.

    Encoded, a line with a full stop is the end of stdin.
    """
    parts = {
        "cwd": cwd, "out": "", "err": ">&2", "begun": 'say "B"\n', "stdin_before": "", "stdin": "<&3",
        "leader": _leader(place, argv, env),
    }  # fmt: skip
    if encoded_stdin:
        # The decoder's output goes through a named pipe, so that the command is still our own child.
        parts["stdin_before"] = (
            'mkfifo "$d/in"; (exec > "$d/in"; while IFS= read -r l; do [ "$l" = . ] && break; '
            'printf %s "$l" | base64 -d; done) <&3 2>/dev/null & feed=$!\n'
        )
        parts["stdin"] = '< "$d/in"'
    after = 'kill -9 "$feed" 2>/dev/null\n' if encoded_stdin else ""
    body = _supervisor(place, token, _STREAM, parts)
    return f'{body}{after}say "X $code"; finish\n'


def end(token: str, cookie: str, grace: float, seconds: float = 5.0) -> str:
    """The script that ends every process whose cookie begins with `cookie`, their descendants and sessions.

    Reports ``K`` lines of those found and ``L`` lines of those that were left.
    """
    looks = max(1, round(grace / 0.05))
    term = (
        'for p in $all; do kill -TERM "$p"; kill -CONT "$p"; done 2>/dev/null\n'
        f'i=0; while [ "$i" -lt {looks} ] && [ -n "$(find_all)" ]; do sleep 0.05; i=$((i + 1)); done\n'
    )
    return (
        f"{_begin(token)}needle={shlex.quote(f'{COOKIE}={cookie}')}\n{_FIND}"
        'all=$(find_all)\nfor p in $all; do say "K $(name_of "$p")(pid $p)"; done\n'
        f"{term if grace > 0 else ''}"
        f'i=0; while all=$(find_all); [ -n "$all" ] && [ "$i" -lt {round(seconds / 0.05)} ]; do\n'
        '  for p in $all; do kill -KILL "$p"; done 2>/dev/null; sleep 0.05; i=$((i + 1))\ndone\n'
        'for p in $all; do say "L $(name_of "$p")(pid $p)"; done\nsay "X 0"\n'
    )


def busy(token: str, box_id: str) -> str:
    """The script that reports a ``K`` line for each command of a box whose supervisor still runs."""
    return (
        f"{_begin(token)}t={shlex.quote(directory_of(box_id))}\n"
        'for f in "$t"/*/pid; do\n'
        '  { read -r p < "$f"; } 2>/dev/null && grep -qsaF -- "$t" "/proc/$p/cmdline" || continue\n'
        '  n=${f%/pid}; say "K ${n##*/}"\ndone\nsay "X 0"\n'
    )


_PARENT = """
inside() {
  p=$(cd -- "$1" 2>/dev/null && pwd -P) || return 1
  case $p/ in /attempt/*) return 0;; *) return 2;; esac
}
"""


def prepare(token: str, box_id: str, directories: Sequence[str]) -> str:
    """The script that looks for `TOOLS` and makes the directories of a fresh box."""
    names = " ".join(map(shlex.quote, directories))
    return (
        f"{_begin(token)}missing=\n"
        f'for t in {" ".join(TOOLS)}; do command -v "$t" >/dev/null || missing="$missing $t"; done\n'
        '[ -z "$missing" ] || { say "M$missing"; exit 0; }\n'
        f"mkdir -p {names} {directory_of(box_id)} 2>/dev/null && [ -w /attempt ] || "
        '{ say "D $(id -u):$(id -g)"; exit 0; }\n'
        f"for t in {names} /attempt/evaluation; do\n"
        '  [ -z "$(ls -A "$t" 2>/dev/null)" ] || { say "U $t"; exit 0; }\ndone\n'
        'say "X 0"\n'
    )


def make_root(token: str, owner: str) -> str:
    """The script, for the superuser, that makes ``/attempt`` for `owner` (``uid:gid``)."""
    return f'{_begin(token)}mkdir -p /attempt && chown {shlex.quote(owner)} /attempt; say "X $?"\n'


def make_directory(token: str, box_id: str) -> str:
    """The script that makes the directory of the supervisors, if it is gone."""
    return f'{_begin(token)}mkdir -p {directory_of(box_id)}; say "X $?"\n'


def remove(token: str, path: str) -> str:
    """The script that removes a file."""
    return f'{_begin(token)}rm -f {shlex.quote(path)}; say "X 0"\n'


def unpack(token: str, archive: str, dest: str, mode: int | None) -> str:
    """The script that replaces `dest` by the entry ``x`` of the tar file `archive`, and removes that."""
    parent, _, last = dest.rpartition("/")
    quoted = shlex.quote(parent)
    chmod = "" if mode is None else f'chmod {mode:o} "$t"\n'
    return (
        f"{_begin(token)}a={shlex.quote(archive)}\n{_PARENT}"
        f"mkdir -p -- {quoted} 2>/dev/null; inside {quoted}; c=$?\n"
        '[ $c = 0 ] || { rm -f "$a"; say "P $c"; exit 0; }\n'
        f"t=$p/{shlex.quote(last)}; s=/attempt/.ageval-new-$$\n"
        '{ mkdir -m 700 "$s" && tar -xpof "$a" -C "$s"; } 2>"$a.err"; c=$?; rm -f "$a"\n'
        '[ $c = 0 ] || { rm -rf "$s"; say "F $(head -c 300 "$a.err" | tr "\\n" " ")"; exit 0; }\n'
        '[ -L "$t" ] || rm -rf -- "$t" 2>/dev/null || { chmod -R u+rwX -- "$t"; }\n'
        'rm -rf -- "$t" && mv -- "$s/x" "$t" 2>"$a.err" || '
        '{ say "F $(tr "\\n" " " < "$a.err")"; rm -rf "$s"; exit 0; }\n'
        f'{chmod}rm -rf "$s" "$a.err"; say "X 0"\n'
    )


def pack(token: str, source: str, archive: str, limit: int) -> str:
    """The script that writes `source` into the tar file `archive`, at most `limit` bytes; says its size."""
    parent, _, last = source.rpartition("/")
    return (
        f"{_begin(token)}a={shlex.quote(archive)}\n{_PARENT}"
        f"inside {shlex.quote(parent or '/')}; c=$?\n"
        f"[ {shlex.quote(source)} = /attempt ] && {{ c=0; p=/; }}\n"
        '[ $c = 0 ] || { say "P $c"; exit 0; }\n'
        f'cd -- "$p"; n=./{shlex.quote(last)}\n'
        '[ -e "$n" ] || [ -L "$n" ] || { say "P 1"; exit 0; }\n'
        f'tar -cf - "$n" 2>"$a.err" < /dev/null | head -c {limit} > "$a"\n'
        'say "N $(head -c 2000 "$a.err" | base64 | tr -d "\\n")"; rm -f "$a.err"\n'
        'say "X $(wc -c < "$a")"\n'
    )


def as_line(script: bytes) -> str:
    """`script` as one line without anything that a shell in between might take for itself."""
    return f'exec sh -c "$(printf %s {base64.b64encode(script).decode()} | base64 -d)"'
