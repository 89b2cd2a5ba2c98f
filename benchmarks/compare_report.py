def write_report(found, strategies, workers): pass
