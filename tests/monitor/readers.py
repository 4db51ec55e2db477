#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads what hearth writes for other programs with those programs' own readers.

readers.py EVENTS_DIR METRICS_FILE

EVENTS_DIR has event files of `hearth monitor --tensorboard`: PyPI's tensorboard must find every
scalar, in order of steps. METRICS_FILE is an answer of /metrics: prometheus_client must parse it,
and each hearth_run_ series must have a help and a type. A reader that is not installed is named,
and is no error.
"""
import sys


def read_events(folder):
    try:
        from tensorboard.backend.event_processing import event_accumulator
    except ImportError:
        print("skipped: no tensorboard in this Python")
        return
    events = event_accumulator.EventAccumulator(folder)
    events.Reload()
    tags = events.Tags()["scalars"]
    for tag in ("run/loss", "run/samples_per_s", "run/trainers", "run/hosts", "test/loss"):
        assert tag in tags, f"no {tag} in {tags}"
    for tag in tags:
        values = events.Scalars(tag)
        assert values, tag
        if tag.startswith("run/"):
            steps = [v.step for v in values]
            assert steps == sorted(steps), (tag, steps)
        assert all(v.value == v.value for v in values), tag
    print(f"tensorboard read {len(tags)} tags")


def read_metrics(path):
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        print("skipped: no prometheus_client in this Python")
        return
    with open(path, encoding="utf-8") as file:
        families = list(text_string_to_metric_families(file.read()))
    run = {f.name: f for f in families if f.name.startswith("hearth_run_")}
    for name in ("step", "loss", "samples", "trainers", "hosts", "experts_served"):
        family = run.get("hearth_run_" + name)
        assert family is not None, f"no hearth_run_{name} among {sorted(run)}"
        assert family.documentation and family.type in ("gauge", "counter"), name
        assert len(family.samples) == 1, name
    print(f"prometheus_client read {len(families)} families")


read_events(sys.argv[1])
read_metrics(sys.argv[2])
