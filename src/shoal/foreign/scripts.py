"""One script a host, for those who start their programs by other means. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence

from shoal.foreign.job import Job, Process
from shoal.foreign.variables import assignments, hostfile, workers_file

HEAD = """#!/bin/sh
# Starts the processes of {node}; made by `shoal launch --write`.
# Ends with the status of the first process that fails, and stops the others then.
mkdir -p {logs}
cd {folder} || exit 126
told=$(mktemp -d) || exit 126
cat >"$told/hostfile" <<'END'
{hostfile}END
cat >"$told/workers" <<'END'
{workers}END
export SHOAL_HOSTFILE="$told/hostfile" DEEPLEARNING_WORKERS_PATH="$told/workers"
pids=
"""
TAIL = """
code=0
for pid in $pids; do
    wait "$pid" || { code=$?; break; }
done
[ "$code" = 0 ] || kill $pids 2>/dev/null
[ -z "$serving" ] || kill $serving 2>/dev/null
wait
rm -rf "$told"
exit "$code"
"""


def script_of(
    job: Job,
    node_rank: int,
    command: Sequence[str],
    variables: Callable[[Process], Mapping[str, str]],
    *,
    folder: str,
    logs: str,
) -> str:
    """A shell script that starts all processes of a node, each with a log.

    Args:
        job: All processes.
        node_rank: Of the node.
        command: The user's, the same for all.
        variables: Of a process.
        folder: Where it runs.
        logs: Folder of logs, there.
    """
    ours = [each for each in job.processes if each.node_rank == node_rank]
    quoted = {"folder": shlex.quote(folder), "logs": shlex.quote(logs)}
    files = {"hostfile": hostfile(job), "workers": workers_file(job)}
    parts = [HEAD.format(node=job.nodes[node_rank].name, **quoted, **files)]
    for process in ours:
        words = shlex.join(["env", *assignments(variables(process)), *command])
        log = shlex.quote(f"{logs}/{process.name}.log")
        kind = "pids" if process.part not in ("ps", "scheduler") else "serving"
        parts.append(f'{words} >{log} 2>&1 &\n{kind}="${kind} $!"\n')
    return "".join([*parts, TAIL])
