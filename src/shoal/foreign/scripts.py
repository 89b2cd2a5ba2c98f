"""One script a host, for starting programs by other means. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence

from shoal.foreign.course import deciding
from shoal.foreign.ending import ENDING, MARK
from shoal.foreign.job import JobProcess, ProcessGroup
from shoal.foreign.variables import (
    HOST_FILES,
    WORKERS_FILE,
    assignments,
    hostfile,
    workers_file,
)

HEAD = """#!/bin/sh
# Starts the processes of {node}; made by `shoal launch --write`.
# Ends with the status of the first process that fails, and stops the others then.
# Ctrl-C and SIGTERM end all: SIGTERM, and SIGKILL after {grace} seconds.
mkdir -p {logs}
cd {folder} || exit 126
grace={grace}
told=$(mktemp -d) || exit 126
"""
START = """
started=
left=" "
ending() {
    why=$1
    set -- $left
    [ $# = 0 ] || echo "$why; ended with it: $*" >&2
}
end_all() {
    trap '' INT TERM HUP
    [ -e /proc/self/environ ] || kill $started
    child=
    finish
    wait $started
    rm -rf "$told"
}
trap 'end_all >/dev/null 2>&1' EXIT
trap 'ending "told to end by SIGHUP"; exit 129' HUP
trap 'ending "told to end by SIGINT"; exit 130' INT
trap 'ending "told to end by SIGTERM"; exit 143' TERM
mkfifo "$told/ends" || exit 126
exec 3<>"$told/ends"
start() {
    kind=$1
    name=$2
    log=$3
    left="$left$name "
    shift 3
    (
        trap - EXIT
        trap 'kill $child' TERM
        env "$mark=1" "$@" >"$log" 2>&1 3>&- &
        child=$!
        while
            wait $child
            code=$?
            [ $code -gt 128 ] && kill -0 $child
        do :; done 2>/dev/null
        echo "$code $kind $name" >&3
    ) &
    started="$started $!"
}
"""
"""A waiter for each process reports its status through a pipe, in the order of ends. A
shell alone can only wait for its children in an order fixed beforehand."""

FILES = """
cat >"$told/hostfile" <<'END'
{hostfile}END
cat >"$told/workers" <<'END'
{workers}END
for each in {hostfile_names}; do export "$each=$told/hostfile"; done
export {workers_name}="$told/workers"
working={working}
"""
TAIL = """
while [ "$working" -gt 0 ]; do
    read -r code kind name <&3 || continue
    left="${left%% $name *} ${left#* $name }"
    [ "$code" = 0 ] || { ending "$name ended with status $code"; exit "$code"; }
    [ "$kind" = serving ] || working=$((working - 1))
done
ending "all that decide have ended here"
"""


def script_of(
    job: ProcessGroup,
    node_rank: int,
    command: Sequence[str],
    variables: Callable[[JobProcess], Mapping[str, str]],
    *,
    folder: str,
    logs: str,
    grace_s: float = 10.0,
) -> str:
    """Returns a shell script that starts all processes of a node, each with a log.

    Args:
        job: All processes of the job.
        node_rank: Rank of the node.
        command: The user's command, the same for all.
        variables: Returns the variables of a process.
        folder: Working folder.
        logs: Folder of logs on the node.
        grace_s: Seconds between SIGTERM and SIGKILL.
    """
    ours = [each for each in job.processes if each.node_rank == node_rank]
    ends = [*deciding(job), *job.doing("evaluator")]
    working = [each for each in ours if each in ends] or ours
    head = HEAD.format(
        node=job.nodes[node_rank].name, folder=shlex.quote(folder),
        logs=shlex.quote(logs), grace=f"{grace_s:g}",
    )  # fmt: skip
    told = FILES.format(
        hostfile=hostfile(job), hostfile_names=" ".join(HOST_FILES),
        workers=workers_file(job), workers_name=WORKERS_FILE, working=len(working),
    )  # fmt: skip
    parts = [head, MARK, ENDING, START, told]
    for process in ours:
        kind = "working" if process in working else "serving"
        log = f"{logs}/{process.name}.log"
        words = [kind, process.name, log, *assignments(variables(process)), *command]
        parts.append(f"start {shlex.join(words)}\n")
    return "".join([*parts, TAIL])
