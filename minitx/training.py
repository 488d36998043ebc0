"""The state of a training in one safetensors file: 50 steps, a stop and 50 more are 100 steps, bit for bit.

    model.NAME              the model's state_dict
    optimiser.NAME.KEY      what the optimiser remembers of that parameter: AdamW's step, m and v, SGD's b; the master of a
                            float16 one
    metadata "training"     JSON: the optimiser's kind, steps and groups, the generator's state, and progress
"""
import itertools
import json

import numpy as np

from minitx import backend, checkpoint
from minitx.optimizer import wide


def save(path, model, optimiser, generator=None, **progress):
    """Write what a training needs to go on: the model, the optimiser's memory and options, the generator, and progress.

    The generator is a np.random.Generator; left out, the one that draws weights and dropout's masks. progress is what
    else is to come back, as JSON can say it: step, losses, place in the data, an optim.GradScaler's state_dict(). Floats
    come back exactly, tuples as lists, NumPy's numbers and arrays as Python's numbers and lists. A callable lr is not kept:
    it is a function of the step. Nor is a generator of CuPy's, which has no state that can be read: after
    manual_seed(rng="device") other dropout masks follow a stop than would have without it.

    The file appears whole or not at all, as checkpoint.save writes it, with its errors. TypeError for progress that JSON
    cannot say, or that is nested too deep, ValueError for an optimiser that trains what the model does not have.
    """
    names, state = _names(model, optimiser), optimiser.state_dict()
    arrays = {f"model.{name}": array for name, array in model.state_dict().items()}
    for name, entry in zip(itertools.chain(*names), state["state"]):
        arrays |= {f"optimiser.{name}.{key}": value if backend.is_array(value) else np.array(value)
                   for key, value in entry.items()}
    groups = [{**group, "params": own} for group, own in zip(state["param_groups"], names)]
    about = {"optimiser": type(optimiser).__name__, "steps": state["steps"], "groups": groups,
             "generator": _checked(generator).bit_generator.state, "progress": progress}
    try:
        text = json.dumps(about, default=as_python)
    except RecursionError:
        raise TypeError("training.save: progress is nested too deep for JSON") from None
    checkpoint.save(path, arrays, {"training": text})


def load(path, model, optimiser, generator=None):
    """Set model, optimiser and generator, in place, to what `save` wrote, and return its progress.

    All is checked first, and nothing is changed where it does not fit: one ValueError names the file and lists all that
    is missing, unexpected, or of another shape, dtype or kind. ValueError also for a file without a training's state,
    FileNotFoundError where there is none. A callable lr stays the one that the optimiser has here.
    """
    stored, generator = checkpoint.Stored(path), _checked(generator)
    about, arrays = _about(path, stored.metadata), stored.arrays()          # of one and the same file
    names, bits = _names(model, optimiser), generator.bit_generator
    try:
        complaints = [*_kinds(about, optimiser, bits), *_groups(about, names), *_arrays(arrays, model, optimiser, names)]
        if complaints:
            raise ValueError("\n  ".join(["the state does not fit; nothing was loaded", *complaints]))
        other = type(bits)(0)
        other.state = about["generator"]                                    # one that is malformed fails here, or is changed
        if json.loads(json.dumps(other.state, default=as_python)) != about["generator"]:
            raise ValueError(f"the generator's state is none of {type(bits).__name__}")
        before = optimiser.steps, optimiser.state, optimiser.param_groups
        optimiser.load_state_dict(_optimiser_state(about, arrays, optimiser, names))
        try:
            model.load_state_dict({name: arrays[f"model.{name}"] for name in model.state_dict()})
        except ValueError:                                                  # a parameter here is read-only
            optimiser.steps, optimiser.state, optimiser.param_groups = before
            raise
        bits.state = about["generator"]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError(f"{path}: the training's state cannot be read: {error!r}") from error
    return about["progress"]


def progress(path):
    """What `load` would return; nothing is loaded. The same errors, but for what does not fit."""
    return _about(path, checkpoint.metadata(path))["progress"]


def as_python(value):
    """NumPy's numbers and arrays as Python's, for json.dumps(default=as_python). TypeError for all else."""
    if not isinstance(value, (np.ndarray, np.generic)):
        raise TypeError(f"training.save: JSON cannot say a {type(value).__name__}; progress is numbers, strings, None, "
                        "and lists and dicts of them")
    return value.tolist()


def _about(path, metadata):
    """What a file's metadata say of a training."""
    text = metadata.get("training")
    if text is None:
        raise ValueError(f"{path}: holds no state of a training; weights alone are read with checkpoint.load")
    try:
        about = json.loads(text)
        lacking = {"optimiser", "steps", "groups", "generator", "progress"} - about.keys()
        if lacking or not isinstance(about["progress"], dict):
            raise ValueError(f"it lacks {', '.join(sorted(lacking)) or 'a dict of progress'}")
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: the training's state cannot be read: {error}") from error
    return about


def _checked(generator):
    generator = backend.generator() if generator is None else generator
    if not isinstance(generator, np.random.Generator):
        raise TypeError(f"training: expected a numpy.random.Generator, got {type(generator).__name__}")
    return generator


def _names(model, optimiser):
    """For each group of the optimiser the model's names of its parameters."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = [group["params"] for group in optimiser.param_groups]
    strangers = [str(p.shape) for p in itertools.chain(*groups) if id(p) not in names]
    if strangers:
        raise ValueError(f"training: the {type(optimiser).__name__} trains parameters that the {type(model).__name__} "
                         f"does not have, of shape {', '.join(strangers)}")
    return [[names[id(p)] for p in group] for group in groups]


def _optimiser_state(about, arrays, optimiser, names):
    """What optimiser.load_state_dict takes: JSON has made lists of the tuples among the options."""
    groups = [{key: tuple(value) if key != "params" and isinstance(value, list) else value
               for key, value in group.items()} for group in about["groups"]]
    state = [{key: arrays[f"optimiser.{name}.{key}"] for key in (*optimiser.memory, "master")
              if f"optimiser.{name}.{key}" in arrays} for name in itertools.chain(*names)]
    return {"steps": about["steps"], "state": state, "param_groups": groups}


# ---- what does not fit, in words -------------------------------------------------------------------------------------

def _kinds(about, optimiser, bits):
    for what, ours, theirs in (("optimiser", type(optimiser).__name__, about["optimiser"]),
                               ("generator", type(bits).__name__, about["generator"]["bit_generator"])):
        if ours != theirs:
            yield f"wrong kind: the {what} is {ours}, the file's {theirs}"
    ours, theirs = bits.state, about["generator"]
    for drawn, place in ((ours.get("buffer"), theirs.get("buffer_pos")),
                         (ours["state"].get("key"), theirs["state"].get("pos"))):
        if drawn is not None and place is not None and not 0 <= place <= len(drawn):
            yield f"the generator's place is {place}, outside of what it has drawn"      # NumPy would read past the end


def _groups(about, names):
    """The first parameter of each group that is not the file's."""
    saved = [group["params"] for group in about["groups"]]
    if len(names) != len(saved):
        yield f"wrong groups: the optimiser has {len(names)}, the file {len(saved)}"
    for i, group in enumerate(zip(names, saved)):
        for ours, theirs in itertools.zip_longest(*group, fillvalue="no more"):
            if ours != theirs:
                yield f"wrong parameters: group {i} of the optimiser has {ours} where the file has {theirs}"
                break
    options = {f"{key} of group {i}": value for i, group in enumerate(about["groups"]) for key, value in group.items()}
    for name, value in {"steps": about["steps"], **options}.items():
        if any(isinstance(number, bool) for number in (value if isinstance(value, list) else [value])):
            yield f"wrong kind: {name} is {value}, no number"


def _arrays(arrays, model, optimiser, names):
    expected = {f"model.{name}": (array.dtype, array.shape) for name, array in model.state_dict().items()}
    parameters = itertools.chain(*(group["params"] for group in optimiser.param_groups))
    for p, name in zip(parameters, itertools.chain(*names)):
        memory = {f"optimiser.{name}.{key}": (backend.LONG, ()) if key == "step" else (wide(p.data), p.shape)
                  for key in optimiser.memory}
        master = {f"optimiser.{name}.master": (backend.SINGLE, p.shape)} if p.dtype == backend.HALF else {}
        if not memory.keys().isdisjoint(arrays):                            # there is none before the first gradient
            expected |= memory | master
        elif not master.keys().isdisjoint(arrays):                          # all that SGD without momentum remembers
            expected |= master
    yield from (f"missing: {name}" for name in expected if name not in arrays)
    yield from (f"unexpected: {name}" for name in arrays if name not in expected)
    for name, (dtype, shape) in expected.items():
        if name in arrays and (arrays[name].dtype, arrays[name].shape) != (dtype, shape):
            yield f"wrong shape or dtype: {name} is {dtype} {shape}, the file's {arrays[name].dtype} {arrays[name].shape}"
        elif name in arrays and name.startswith("optimiser.") and name.endswith(".v") and (arrays[name] < 0).any():
            yield f"wrong values: {name} is a mean of squares, and has negative entries"
