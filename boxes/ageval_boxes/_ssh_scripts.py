"""What an ssh box runs on the host at the other end: POSIX shell, coreutils, awk, tar, and Linux's /proc.

Each script is sent anew with every use, so that nothing in the box can change it. Exit codes from
20 on have the meaning given here; others are of the tools.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from ageval_boxes._processes import COOKIE

UNUSABLE = 20
NOT_UNPACKED = 21
NOT_REPLACED = 22
OUTSIDE = 23
MISSING = 24
LEFT = 25

# Where boxes are made. $1: the option root, or "".
_PARENT = r"""
parent() {
  case $1 in
    "~/"*) p=$HOME/${1#"~/"} ;;
    "") p=/tmp/pytest-ageval-$(id -u) ;;
    *) p=$1 ;;
  esac
}
"""

_TOOLS = r"""
for t in awk cat chmod cut grep head id mkdir mktemp mv rm sleep tar tr; do
  command -v "$t" >/dev/null 2>&1 || m="$m $t"
done
[ -z "$m" ] || { echo "these programs are missing in the box:$m" >&2; exit 20; }
[ -r /proc/self/stat ] || { echo "there is no /proc; a box needs Linux" >&2; exit 20; }
"""

#: Makes the directories of a box. $1: parent ("" for the default), $2: name, $3: marker. Prints the
#: root and the PATH that a login has.
START = (
    _PARENT
    + _TOOLS
    + r"""
parent "$1"
mkdir -p -m 700 -- "$p" || exit 20
if [ -z "$1" ]; then
  if [ -L "$p" ] || [ ! -O "$p" ]; then echo "$p belongs to someone else" >&2; exit 20; fi
fi
p=$(cd -P -- "$p" && pwd -P) || exit 20
r=$p/$2
mkdir -m 700 -- "$r" "$r/staging" || exit 20
printf '%s\n' "$3" > "$r/box.json" || exit 20
mkdir -m 755 -- "$r/box" "$r/box/workspace" "$r/box/home" "$r/box/artifacts" || exit 20
mkdir -m 700 -- "$r/tmp" || exit 20
printf '%s\n%s\n' "$r" "$PATH"
"""
)

#: Makes the directories of a box in its container. $1: staging. Prints the container's PATH.
START_INSIDE = (
    _TOOLS
    + r"""
mkdir -m 755 -- /attempt /attempt/workspace /attempt/home /attempt/artifacts || exit 20
mkdir -p -m 700 -- "$1" || exit 20
printf '%s\n' "$PATH"
"""
)

#: Runs docker with the arguments.
DOCKER = r"""
command -v docker >/dev/null 2>&1 || { echo "docker is not installed on the host" >&2; exit 20; }
exec docker "$@"
"""

# The parent directory of a path of the box, which links must not have led out of it.
_INSIDE = r"""
inside() {
  e=$1/$2
  if [ "$2" = .. ]; then P=${1%/*}; P=${P:-/}; return; fi
  while [ ! -d "$e" ]; do
    if [ -e "$e" ] || [ -L "$e" ]; then echo "not a directory of the box: $e" >&2; exit 23; fi
    [ "$3" = create ] || exit 24
    e=${e%/*}
  done
  P=$(cd -P -- "$e" 2>/dev/null && pwd -P && echo x) || { echo "cannot enter $e" >&2; exit 23; }
  P=${P%??}
  case $P/ in "$1"/*) ;; *) echo "a symbolic link leads out of the box: $2" >&2; exit 23 ;; esac
  f=$1/$2
  [ "$e" = "$f" ] && return
  mkdir -p -- "$f" || exit 22
  P=$(cd -P -- "$f" && pwd -P && echo x) || exit 22
  P=${P%??}
}
"""

#: Replaces a path by the entry ``x`` of the tar stream on stdin. $1: the box, $2: parent, $3: name,
#: $4: mode of a directory, or "", $5: a directory on the same file system.
UPLOAD = (
    _INSIDE
    + r"""
umask 022
s=$(mktemp -d "$5/XXXXXX") || exit 21
clean() { chmod -R u+rwX -- "$s" 2>/dev/null; rm -rf -- "$s"; }
trap clean EXIT
tar -xpof - -C "$s" || exit 21
[ -e "$s/x" ] || [ -L "$s/x" ] || exit 21
inside "$1" "$2" create
t=$P/$3
if [ -d "$t" ] && [ ! -L "$t" ]; then chmod u+rwx -- "$t"; fi
if [ -e "$t" ] || [ -L "$t" ]; then mv -- "$t" "$s/old" || exit 22; fi
[ -z "$4" ] || chmod u+rwx -- "$s/x"
mv -- "$s/x" "$t" || exit 22
[ -z "$4" ] || chmod "$4" -- "$t"
"""
)

#: Writes a path to stdout as a tar stream. $1: the box, $2: parent (".." for all of it), $3: name.
DOWNLOAD = (
    _INSIDE
    + r"""
inside "$1" "$2"
cd -P -- "$P" || exit 23
[ -e "$3" ] || [ -L "$3" ] || exit 24
exec tar -cf - -- "./$3"
"""
)

# Finds processes by what their environment holds, by descent, and by session; ends them. Sessions
# that sshd itself belongs to say nothing.
_END = r"""
members() {
  first=$(grep -lsF -- "$needle" /proc/[0-9]*/environ | cut -d/ -f3 | tr '\n' ' ')
  cat /proc/[0-9]*/stat 2>/dev/null | awk -v first="$first" -v spare="$spare" -v sshd="$PPID" '
    { pid = $1; sub(/^.*\) /, ""); split($0, f, " ")
      if (f[1] !~ /[ZXx]/) { parent[pid] = f[2]; session[pid] = f[4] } }
    END {
      n = split(first " " spare, a, " ")
      for (i = 1; i <= n; i++) if (a[i] in parent) in_it[a[i]] = 1
      do {
        more = 0
        for (p in in_it) if (session[p] != session[sshd] && session[p] != 0) of[session[p]] = 1
        for (p in parent) if (!(p in in_it) && ((parent[p] in in_it) || (session[p] in of))) {
          in_it[p] = 1; more = 1 }
      } while (more)
      for (p in in_it) if (p != spare) print p
    }'
}
said() {
  w=$(tr '\0\n' '  ' 2>/dev/null < "/proc/$1/cmdline" | head -c 120)
  printf '%s%s (pid %s)\n' "$2" "${w:-?}" "$1"
}
end() {
  found=$(members)
  for p in $found; do said "$p" -; done
  if [ "$1" -gt 0 ]; then
    for p in $found; do kill -TERM "$p" 2>/dev/null; kill -CONT "$p" 2>/dev/null; done
    i=0
    while [ "$i" -lt "$1" ] && [ -n "$found" ]; do sleep 0.05; i=$((i + 1)); found=$(members); done
  fi
  i=0
  while [ -n "$found" ] && [ "$i" -lt 100 ]; do
    for p in $found; do kill -KILL "$p" 2>/dev/null; done
    sleep 0.02
    i=$((i + 1))
    found=$(members)
  done
  for p in $found; do said "$p" !; done
  [ -z "$found" ]
}
"""

#: Ends processes. $1: what their environment holds, $2: the process to spare or "", $3: how long to
#: wait between TERM and KILL, in twentieths of a second. Prints ``-process`` ended, ``!process`` left.
END = (
    _END
    + r"""
needle=$1 spare=$2
end "$3" || exit 25
"""
)

#: Ends a box. $1: what the environment of its processes holds, $2: where boxes are made, $3: its
#: name there, $4: ``keep`` leaves the files of the box.
STOP = (
    _PARENT
    + _END
    + r"""
needle=$1 spare=
end 0 || exit 25
parent "$2"
r=$p/$3
if [ "$4" = keep ]; then rm -rf -- "$r/staging" "$r/box.json"; exit; fi
if [ -e "$r" ]; then
  chmod -R u+rwX -- "$r" 2>/dev/null
  rm -rf -- "$r" || exit 22
fi
"""
)

# Takes its orders from the first line of stdin, so that no variable appears on a command line.
_RUNNER = 'IFS= read -r ageval_line || exit 125; eval "$ageval_line"'


def script_command(script: str, args: Sequence[str], container: str | None = None) -> str:
    """The line for a login shell that runs one of the scripts, on the host or in a container."""
    words = " ".join(shlex.quote(word) for word in args)
    if container is not None:
        return f"exec docker exec -i -e LC_ALL=C {container} sh -c {shlex.quote(script)} ageval {words}"
    return f'exec env -i PATH="$PATH" HOME="$HOME" LC_ALL=C sh -c {shlex.quote(script)} ageval {words}'


def run_command(cookie: str, container: str | None = None) -> str:
    """The line for a login shell that runs a command of a box, as the line from `orders` says."""
    if container is not None:
        return f"exec docker exec -i -e {COOKIE}={cookie} {container} sh -c {shlex.quote(_RUNNER)}"
    return f'exec env -i PATH="$PATH" {COOKIE}={cookie} sh -c {shlex.quote(_RUNNER)}'


def orders(argv: Sequence[str], cwd: str, env: Mapping[str, str], mark: str) -> bytes:
    """The line that a runner reads: where to go, with which variables, and what to start.

    The runner outlives TERM, so that it can tell how the command ended. On stderr it says `mark`
    and its process id, or `mark` and ``!`` when the directory is missing.
    """
    words = " ".join(_quote(word) for word in argv)
    exports = "; ".join(f"export {name}={_quote(value)}" for name, value in env.items())
    line = (
        "ageval_nl=$(printf '\\nx'); ageval_nl=${ageval_nl%x}; "
        f"cd -- {_quote(cwd)} 2>/dev/null || {{ echo '{mark}!' >&2; exit 125; }}; "
        f"echo '{mark}'$$ >&2; "
        f"set -- {words}; trap : TERM HUP INT; exec 3>&2 2>/dev/null; "
        f'( exec 2>&3 3>&-; {exports}; unset ageval_line ageval_nl; exec "$@" ); exit $?\n'
    )
    return line.encode("utf-8", "surrogateescape")


def _quote(text: str) -> str:
    """`text` for the shell, on one line."""
    return '"$ageval_nl"'.join(shlex.quote(part) for part in text.split("\n"))
