"""The public verbs. This is the only module that composes the others."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.data import training_data
from shoal.engine.driver import Habits
from shoal.engine.fitting import Work, train
from shoal.engine.inspection import SAMPLE_ROWS, prepare, read_model
from shoal.facts import DataFacts, MachineFacts
from shoal.plan import Plan, Request, resolve
from shoal.runs.store import start
from shoal.strategies import get


def fit(model, x=None, y=None, *, strategy="all_reduce", workers="auto", cluster="local",
        batch_size=None, epochs=1, verbose="auto", callbacks=None, validation_split=0.0,
        validation_data=None, shuffle=True, class_weight=None, sample_weight=None,
        initial_epoch=0, steps_per_epoch=None, validation_steps=None,
        validation_batch_size=None, validation_freq=1, run=None, monitor=None,
        deterministic=False, epoch_barrier=True, max_restarts=3, threads=None, seed=None,
        custom_objects=None):
    source, held = training_data(x, y, sample_weight, class_weight=class_weight, validation_split=validation_split, validation_data=validation_data)
    sample = source.take(slice(0, SAMPLE_ROWS))
    prepare(model, sample)
    facts = read_model(model, sample)
    data = DataFacts(rows=len(source), size_bytes=source.size_bytes, has_sample_weight=source.has_sample_weight, validation_rows=0 if held is None else len(held))
    request = Request(strategy=get(strategy), workers=workers, cluster=cluster, batch_size=batch_size, epochs=epochs, initial_epoch=initial_epoch, steps_per_epoch=steps_per_epoch, shuffle=shuffle, seed=int(np.random.randint(2**31 - 1)) if seed is None else seed, deterministic=deterministic, epoch_barrier=epoch_barrier, max_restarts=max_restarts, threads=threads)
    plan = resolve(request, facts, data, MachineFacts(cores=2))
    with start(run, name=model.name) as record:
        record.write_plan(plan.to_json())
        record.event("run_started", strategy=plan.strategy.name, workers=plan.workers, rows=plan.rows, epochs=plan.epochs, samples_expected=plan.samples_expected)
        validate = None
        if held is not None:
            arrays = (*held.take(slice(None)), None, None)[:3]
            def validate(callbacks=None):
                return model.evaluate(arrays[0], arrays[1], sample_weight=arrays[2], batch_size=validation_batch_size or plan.batch_size, steps=validation_steps, callbacks=callbacks, verbose=0, return_dict=True)
        history = train(plan, Work(model=model, source=source, custom_objects=custom_objects), record, Habits(callbacks=callbacks, validate=validate, validation_freq=validation_freq, monitor=monitor, verbose=0 if verbose == 0 else 2))
        record.finish("finished", {})
        history.run = record
    return history
