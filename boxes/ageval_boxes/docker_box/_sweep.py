"""Ending processes inside a container: a small shell program that runs there as root."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_ageval.box import system_script

#: Finds processes by the cookie in their environment, by descent and by session; without a cookie,
#: everything but the container's first two processes (its init, and what keeps it open). With "keep",
#: only what still descends from a command: not what has detached itself.
#: Arguments: the cookie or "", twentieths of a second between TERM and KILL, "keep" or "".
#: Prints a line ``K<tab>pid<tab>command`` for each process ended, a line ``L`` for each that is left, those
#: of `_OOM`, and ``E`` at the end. Needs sh, grep, tr, cut, sleep.
SCRIPT = r"""
cookie=$1 grace=$2 keep=$3 me=$$ told=" "
row() { # the fields that follow the name in parentheses, which may hold anything
  { IFS= read -r line < "/proc/$1/stat"; } 2>/dev/null || return 1
  set -- ${line##*) }
  state=$1 parent=$2 session=$4 start=${20}
  case $state in [ZXx]) return 1 ;; esac
}
look() {
  rows='' keeper='' oldest='' members=' ' sessions=' '
  for dir in /proc/[0-9]*; do
    pid=${dir#/proc/}
    [ "$pid" = 1 ] || ! row "$pid" || [ "$session" = "$me" ] && continue
    rows="$rows $pid:$parent:$session"
    if [ "$parent" = 1 ] && { [ -z "$oldest" ] || [ "$start" -lt "$oldest" ]; }; then
      keeper=$pid oldest=$start
    fi
  done
  if [ -z "$cookie$keep" ]; then
    for r in $rows; do pid=${r%%:*}; [ "$pid" = "$keeper" ] || members="$members$pid "; done
    return
  fi
  if [ -z "$cookie" ]; then
    for r in $rows; do case $r in *:0:*) members="$members${r%%:*} " ;; esac; done
  else
    for path in $(grep -lsF -e "AGEVAL_BOX_COOKIE=$cookie" /proc/[0-9]*/environ); do
      pid=${path#/proc/}; pid=${pid%/environ}
      # A command's own process has its parent outside of the container: 0.
      case " $rows" in *" $pid:0:"*) ;; *" $pid:"*) [ "$keep" ] && continue ;; *) continue ;; esac
      members="$members$pid "
    done
  fi
  again=1
  while [ "$again" ]; do
    again=''
    for r in $rows; do
      pid=${r%%:*} session=${r##*:} parent=${r#*:}
      parent=${parent%%:*}
      [ "$pid" = "$keeper" ] && continue
      case $members in
        *" $pid "*)
          case $sessions in *" $session "*) ;; *) sessions="$sessions$session " again=1 ;; esac
          continue
          ;;
      esac
      case "$members" in *" $parent "*) members="$members$pid " again=1; continue ;; esac
      [ "$keep" ] || case "$sessions" in *" $session "*) members="$members$pid " again=1 ;; esac
    done
  done
}
tell() {
  for pid in $members; do
    case $told in *" $pid "*) continue ;; esac
    told="$told$pid "
    words=$({ tr '\0\n\t' '   ' < "/proc/$pid/cmdline" | cut -c 1-120; } 2>/dev/null)
    printf 'K\t%s\t%s\n' "$pid" "${words:-?}"
  done
}
nap() { sleep 0.05 2>/dev/null || sleep 1; }
look
tell
if [ "$grace" -gt 0 ] && [ "$members" != ' ' ]; then
  kill -TERM $members 2>/dev/null
  while [ "$grace" -gt 0 ] && [ "$members" != ' ' ]; do nap; look; tell; grace=$((grace - 1)); done
fi
tries=100
while [ "$members" != ' ' ] && [ "$tries" -gt 0 ]; do
  kill -KILL $members 2>/dev/null
  nap
  look
  tell
  tries=$((tries - 1))
done
for pid in $members; do echo L; done
oom
echo E
"""

#: Defines `oom`, which prints ``M<tab>number``: the processes that the kernel has ended in this container for
#: want of memory. Needs nothing but sh.
_OOM = r"""
oom() {
  for file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
    [ -r "$file" ] || continue
    while read -r name number; do
      case $name in oom_kill) printf 'M\t%s\n' "$number" ;; esac
    done < "$file"
  done
}
"""


def arguments(cookie: str, grace: float, *, keep: bool = False) -> list[str]:
    """The command that ends the processes of `cookie` ("": all), TERM first for `grace` seconds."""
    return system_script(_OOM + SCRIPT, cookie, str(round(grace * 20)), "keep" if keep else "")


def oom_arguments() -> list[str]:
    """The command that only tells how many processes the kernel has ended for want of memory."""
    return system_script(f"{_OOM}oom")


@dataclass(slots=True)
class Seen:
    """What was ended, for people; how many processes are left, and how many the kernel has ended."""

    ended: list[str] = field(default_factory=list)
    left: int = 0
    ooms: int = 0


def parse(output: str) -> Seen:
    """What a sweep has printed."""
    seen = Seen()
    for line in output.splitlines():
        kind, _, rest = line.partition("\t")
        if kind == "K":
            pid, _, words = rest.partition("\t")
            seen.ended.append(f"{words.strip() or '?'} (pid {pid} in the container)")
        elif kind == "L":
            seen.left += 1
        elif kind == "M" and rest.isdigit():
            seen.ooms = max(seen.ooms, int(rest))
    return seen


def wrapped(argv: Sequence[str], cwd: str, mark: str) -> list[str]:
    """`argv` in the directory `cwd`; a missing directory is told by `mark` on stderr and exit code 125."""
    script = 'cd -P "$1" 2>/dev/null || { echo "$2" >&2; exit 125; }; shift 2; exec "$@"'
    return ["/bin/sh", "-c", script, "sh", cwd, mark, *argv]
