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
for t in awk cat chmod cut grep head id mkdir mktemp mv rm sha256sum sleep tail tar tr wc; do
  command -v "$t" >/dev/null 2>&1 || m="$m $t"
done
[ -z "$m" ] || { echo "these programs are missing in the box:$m" >&2; exit 20; }
[ -r /proc/self/stat ] || { echo "there is no /proc; a box needs Linux" >&2; exit 20; }
"""

# Where agents' installs are kept on a host; C is "" where they cannot be. Its name changes with its
# layout. For a container ($1: its image's id) one that any user in the container can write to: the
# directory above it is closed to the host's other users.
_CACHE = r"""
cache() {
  C=${XDG_CACHE_HOME:-$HOME/.cache}/pytest-ageval/boxes
  mkdir -p -- "$C" 2>/dev/null && [ -O "$C" ] && chmod 700 -- "$C" || { C=; return; }
  if [ -z "$1" ]; then
    C=$C/host-1
    mkdir -p -- "$C" || C=
  else
    C=$C/image-1/$1
    mkdir -p -- "$C" && chmod 1777 -- "$C" || C=
  fi
}
"""

#: Makes the directories of a box. $1: parent ("" for the default), $2: name, $3: marker, $4: ``cache``
#: if there is to be one. Prints the root, the PATH that a login has, and the cache directory.
START = (
    _PARENT
    + _CACHE
    + _TOOLS
    + r"""
[ "$4" = cache ] && cache ""
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
printf '%s\n%s\n%s\n' "$r" "$PATH" "$C"
"""
)

#: Finds the directories of a box again and puts another marker there. Arguments and output as of `START`.
RESUME = (
    _PARENT
    + _CACHE
    + r"""
[ "$4" = cache ] && cache ""
parent "$1"
p=$(cd -P -- "$p" 2>/dev/null && pwd -P) || exit 24
r=$p/$2
[ -d "$r/box/workspace" ] && [ -f "$r/box.json" ] || exit 24
printf '%s\n' "$3" > "$r/.box.json" && mv -- "$r/.box.json" "$r/box.json" || exit 20
printf '%s\n%s\n%s\n' "$r" "$PATH" "$C"
"""
)

#: Prints the id of an image, which docker pulls if need be, and the cache directory for its containers.
#: $1: the image, $2: ``cache`` if there is to be one.
IMAGE = (
    _CACHE
    + r"""
command -v docker >/dev/null 2>&1 || { echo "docker is not installed on the host" >&2; exit 20; }
i=$(docker image inspect -f '{{.Id}}' -- "$1" 2>/dev/null) || {
  docker pull -q -- "$1" >/dev/null || exit 21
  i=$(docker image inspect -f '{{.Id}}' -- "$1") || exit 21
}
[ "$2" = cache ] && cache "${i#*:}"
printf '%s\n%s\n' "$i" "$C"
"""
)

#: Where a container of a box is again. $1: staging. Prints the container's PATH.
RESUME_INSIDE = r"""
[ -d /attempt/workspace ] || exit 24
mkdir -p -m 700 -- "$1" || exit 20
printf '%s\n' "$PATH"
"""

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

_UNPACK = (
    _INSIDE
    + r"""
umask 022
s=$(mktemp -d "$5/XXXXXX") || exit 21
clean() { chmod -R u+rwX -- "$s" 2>/dev/null; rm -rf -- "$s"; }
trap clean EXIT
arrived | tar -xpof - -C "$s" || exit 21
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

#: Replaces a path by the entry ``x`` of the tar stream on stdin. $1: the box, $2: parent, $3: name,
#: $4: mode of a directory, or "", $5: a directory on the same file system.
UPLOAD = "arrived() { cat; }\n" + _UNPACK

#: As `UPLOAD`, of what `RECEIVE` wrote. $6: a part, $7: how much of it counts; the next two likewise, or
#: nothing.
UPLOAD_PARTS = (
    r"""
a=$6 n=$7 b=$8
arrived() { head -c "$n" -- "$a"; [ -z "$b" ] || cat -- "$b"; }
"""
    + _UNPACK
)

#: Writes stdin to a file. $1: the file. Prints its digest when it is whole.
RECEIVE = r"""
umask 077
cat > "$1" || exit 21
sha256sum < "$1" | cut -d" " -f1
"""

#: How much of a file is there: its size, and the digest of as much. $1: the file.
RECEIVED = r"""
n=$(wc -c < "$1" 2>/dev/null) || n=0
n=$((n))
printf '%s %s\n' "$n" "$( [ "$n" = 0 ] || head -c "$n" -- "$1" | sha256sum | cut -d" " -f1)"
"""

#: Removes files. $*: the files.
FORGET = 'rm -f -- "$@"'

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

#: The same stream from an offset on, after a line with the digest of what comes before. $4: the offset.
DOWNLOAD_REST = (
    _INSIDE
    + r"""
inside "$1" "$2"
cd -P -- "$P" || exit 23
[ -e "$3" ] || [ -L "$3" ] || exit 24
tar -cf - -- "./$3" 2>/dev/null | head -c "$4" | sha256sum | cut -d" " -f1
tar -cf - -- "./$3" | tail -c +$(($4 + 1))
"""
)

#: The digest of the whole stream. Arguments as of `DOWNLOAD`.
DOWNLOAD_DIGEST = (
    _INSIDE
    + r"""
inside "$1" "$2"
cd -P -- "$P" || exit 23
tar -cf - -- "./$3" 2>/dev/null | sha256sum | cut -d" " -f1
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

#: Looks at a box. $1: what the environment of its processes holds, $2: where boxes are made ("-" in a
#: container), $3: its name there. Prints its processes.
LOOK = (
    _PARENT
    + _END
    + r"""
needle=$1 spare=
if [ "$2" != - ]; then
  parent "$2"
  [ -d "$p/$3/box" ] || exit 24
fi
for p in $(members); do said "$p"; done
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
    keep = 'PATH="$PATH" HOME="$HOME" XDG_CACHE_HOME="$XDG_CACHE_HOME"'
    return f"exec env -i {keep} LC_ALL=C sh -c {shlex.quote(script)} ageval {words}"


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
