"""One server on the script's machine, and servers on all nodes, behind cables.

Run as root: `python -m benchmarks.servers_on_nodes`. A Ray cluster of network
namespaces: the script and the head in one, a worker in each of the others, every one
behind a cable of its own with the same limit each way. A perceptron of 6 million
weights, 24 MB a vector, under `downpour` with an exchange every 8 steps. Servers on
nodes divide what goes through the script's cable; decision 30.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics as st
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

from tests.ray_nodes import RayNode
from tests.support.hosts import Cable, Hosts

STEPS, BATCH, EPOCHS = 64, 64, 3
LIMIT_S = 600.0

_SCRIPT = """
import json, sys, time
from itertools import pairwise
import keras, shoal
from benchmarks.works import WORKS

head, servers, workers, rows, batch, epochs = json.loads(sys.argv[1])
ends = []
class Ends(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        ends.append(time.perf_counter())

x, y = WORKS["wide"].samples(rows)
history = shoal.fit(
    WORKS["wide"].make(), x, y, batch_size=batch, epochs=epochs, cluster=head,
    strategy=shoal.strategies.get("downpour", period=8), servers=servers,
    workers=workers, threads=1, run=False, verbose=0, callbacks=[Ends()],
)
spans = [after - before for before, after in pairwise(ends)]
print(json.dumps({"rates": [rows / span for span in spans],
                  "loss": history.history["loss"][-1]}))
"""


def trained(host: str, head: str, servers: int, workers: int) -> dict[str, Any]:
    """Trains in a host's namespace; returns the rates of later epochs and the loss."""
    rows = STEPS * BATCH * workers
    words = json.dumps([head, servers, workers, rows, BATCH, EPOCHS])
    done = subprocess.run(
        ["ip", "netns", "exec", host, sys.executable, "-c", _SCRIPT, words],
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Prints each turn, then medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mbit", type=float, default=200.0)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    if os.geteuid() or shutil.which("ip") is None:
        print("Not measured: it takes root and iproute2, for network namespaces.")
        return
    workers = given.workers
    found: dict[int, list[float]] = {1: [], workers + 1: []}
    with ExitStack() as stack:
        hosts = Hosts(workers + 1, Cable(mbit=given.mbit))
        stack.callback(hosts.close)
        net = hosts.address.rpartition(".")[0]
        head = RayNode(f"{net}.2", None, hosts.names[0], cpus=0)
        stack.callback(head.close)
        for number in range(1, workers + 1):
            ip = f"{net}.{number + 2}"
            node = RayNode(ip, head.address, hosts.names[number], cpus=1)
            stack.callback(node.close)
        for turn in range(given.repeats):
            for servers in found:
                answer = trained(hosts.names[0], head.address, servers, workers)
                found[servers] += answer["rates"]
                rates = ", ".join(f"{rate:,.0f}" for rate in answer["rates"])
                print(
                    f"{turn + 1}/{given.repeats} servers={servers}: {rates} samples/s, "
                    f"loss {answer['loss']:.3f}",
                    flush=True,
                )
    one, many = (st.median(rates) for rates in found.values())
    print(
        f"{workers} workers, cables of {given.mbit:g} Mbit/s: {one:,.0f} samples/s "
        f"with one server, {many:,.0f} with {workers + 1}: {many / one:.2f} times"
    )


if __name__ == "__main__":
    main()
