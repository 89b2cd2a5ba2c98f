"""Every message between the processes of a run, by sender and receiver. Pure.

`worker_to_server` and `server_to_worker`, `shard` (between workers, shards and number
0), `standby` (between a server and its standby), `controller_to_server` and
`server_to_controller`, with `state_reports` for those that vectors follow. `events`
are what servers send each other to handle, `worker_reports` a worker's reports to the
controller, through its server.
Imports nothing but errors, `coordination` and the fields of `transport/fields.py`.
"""
