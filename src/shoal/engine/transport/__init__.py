"""Transport between workers and servers: connections, shared memory, codecs.

Imports `coordination` and `shoal.wire`; knows neither servers nor workers.
"""
