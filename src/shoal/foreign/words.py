"""The command of a process for the shell of its node. Pure.

Every process runs under a small guard in `sh`, on this machine and on others, which
runs as long as its standard input stays open. When that closes, because the
job is stopped, or the connection or `shoal launch` itself has ended, the guard ends the
process and all its descendants, and no other process of its user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.clusters.ssh import SSH, over
from shoal.foreign.ending import ENDING, MARK
from shoal.foreign.job import Node
from shoal.foreign.variables import HOST_FILES, WORKERS_FILE, assignments

GUARD = f"""
cd "$1" || exit 126
grace=$2
quiet=$3
told=$(mktemp -d) || exit 126
{MARK}
printf %s "$4" >"$told/hostfile"
printf %s "$5" >"$told/workers"
for each in {" ".join(HOST_FILES)}; do export "$each=$told/hostfile"; done
export {WORKERS_FILE}="$told/workers"
shift 5
{ENDING}
hear() {{
    if [ "$quiet" = 0 ]; then cat; fi
    while [ -n "$(timeout "$quiet" head -c 1)" ]; do :; done
}}
trap : TERM
exec 3<&0 0</dev/null
env "$mark=1" "$@" 3<&- &
child=$!
(
    trap : TERM
    hear <&3
    : >"$told/over"
    kill -TERM 0
    finish && exit
    rm -rf "$told"
    kill -KILL 0
) >/dev/null 2>&1 &
guard=$!
exec 3<&-
await() {{
    while
        wait $1 2>/dev/null
        code=$?
        [ $code -gt 128 ] && kill -0 $1 2>/dev/null
    do :; done
}}
await $child
ended=$code
child=
if [ -e "$told/over" ]; then
    await $guard
else
    kill -KILL $guard
    kill -TERM 0
    finish >/dev/null 2>&1
fi
rm -rf "$told"
exit $ended
"""
"""The guard leads a process group of its own, which `kill` means by 0; processes that
left it are found by the mark, see `ending`. Descendants that outlive a process are
ended with it. On other hosts the guard expects a byte regularly: a broken network link
closes nothing. It writes the files of hosts itself: nodes need not share a folder."""

BEAT_S = 2.0
QUIET_S = 9
"""Seconds between two bytes, and without one until a guard ends its process."""


def guarded(
    command: Sequence[str],
    variables: Mapping[str, str],
    folder: str,
    grace_s: float,
    quiet_s: int = 0,
    files: tuple[str, str] = ("", ""),
) -> list[str]:
    """Returns words that run a command under its guard.

    Args:
        command: The user's command.
        variables: Variables besides those of the node.
        folder: Working folder.
        grace_s: Seconds between SIGTERM and SIGKILL.
        quiet_s: Seconds without a byte until the guard ends the process; 0 for any.
        files: Contents of the file of hosts with slots, and of that of addresses.

    Example:
        >>> guarded(["date"], {"A": "1"}, "/tmp", 5)[3:]
        ['shoal', '/tmp', '5', '0', '', '', 'env', 'A=1', 'date']
    """
    told = [*files, "env", *assignments(variables), *command]
    return ["sh", "-c", GUARD, "shoal", folder, f"{grace_s:g}", str(quiet_s), *told]


def reached(node: Node, words: Sequence[str], ssh: Sequence[str] = SSH) -> list[str]:
    """Returns words that run other words on a node.

    Args:
        node: This machine, or a host of OpenSSH.
        words: Words to run there.
        ssh: The command that reaches hosts.

    Example:
        >>> reached(Node(name="b", address="10.0.0.2"), ["echo", "a b"], ["ssh"])
        ['ssh', 'b', "exec echo 'a b'"]
    """
    if node.is_here:
        return list(words)
    return over([*ssh, *node.ssh_options, node.name], words)
