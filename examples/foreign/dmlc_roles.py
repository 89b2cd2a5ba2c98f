"""Checks the roles of DMLC: every process reports its role to the scheduler.

    shoal launch --scheduler --ps 2 --per-node 2 -- python dmlc_roles.py

The scheduler listens at the root address, as that of DMLC's parameter server does, and
counts who comes: as many servers and workers as all were told there are.
"""

import json
import os
import socket
import time

ROLE = os.environ["DMLC_ROLE"]
ROOT = os.environ["DMLC_PS_ROOT_URI"], int(os.environ["DMLC_PS_ROOT_PORT"])
SERVERS = int(os.environ["DMLC_NUM_SERVER"])
WORKERS = int(os.environ["DMLC_NUM_WORKER"])
LIMIT_S = 60.0


def schedule() -> None:
    """Receives the roles of all others, and answers when all have connected."""
    with socket.create_server(ROOT) as listener:
        listener.settimeout(LIMIT_S)
        callers = [listener.accept()[0] for _ in range(SERVERS + WORKERS)]
        said = [json.loads(caller.makefile().readline()) for caller in callers]
        roles = [role for role, _ in said]
        if (roles.count("server"), roles.count("worker")) != (SERVERS, WORKERS):
            raise SystemExit(f"others than there should be: {said}")
        if len({tuple(each) for each in said}) != len(said):
            raise SystemExit(f"one is there twice: {said}")
        for caller in callers:
            caller.sendall(b"all are here\n")
            caller.close()
    print(f"scheduler: {SERVERS} servers and {WORKERS} workers")


def call() -> None:
    """Sends this process' role to the scheduler, which may not listen yet."""
    number = os.environ.get("DMLC_SERVER_ID", os.environ.get("DMLC_WORKER_ID"))
    until = time.monotonic() + LIMIT_S
    while True:
        try:
            connection = socket.create_connection(ROOT, timeout=LIMIT_S)
            break
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise SystemExit("no scheduler") from None
            time.sleep(0.05)
    with connection:
        connection.sendall(json.dumps([ROLE, number]).encode() + b"\n")
        if connection.makefile().readline() != "all are here\n":
            raise SystemExit("the scheduler misses somebody")
    print(f"{ROLE} {number} has met the scheduler")


schedule() if ROLE == "scheduler" else call()
