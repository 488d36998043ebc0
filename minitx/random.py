"""Random numbers: one counted generator on the host, and, where it is asked for, one on each GPU for dropout's masks."""

_generator = None
_seed, _on_devices = None, None     # with rng="device": {device: CuPy's generator there}, as they come to be needed


def manual_seed(seed, rng="host"):
    """Restart the one counted generator: np.random.Generator(np.random.Philox(seed)).

    It lives on the host for every device, so a run on the CPU and a run on a GPU draw the same weights, batches and masks.
    With rng="device" the masks of dropout on "cuda" come from a generator of CuPy's instead: nothing is copied there for
    them, but they are not those of the CPU, and a training that resumes does not go on with their sequence. All else
    stays as it is. ValueError for another word.
    """
    global _generator, _seed, _on_devices
    from numpy.random import Generator, Philox
    if rng not in ("host", "device"):
        raise ValueError(f"manual_seed: rng is 'host' or 'device', not {rng!r}")
    _generator = Generator(Philox(seed))
    _seed, _on_devices = seed, {} if rng == "device" else None


def generator():
    """The process-wide generator, seeded by the operating system until manual_seed is called."""
    if _generator is None:
        manual_seed(None)
    return _generator


def draws_on_devices():
    """Whether dropout's masks are drawn where they are used."""
    return _on_devices is not None


def on_device(device, cupy):
    """CuPy's generator on a device, which must be its current one."""
    if device not in _on_devices:
        _on_devices[device] = cupy.random.Generator(cupy.random.Philox4x3210(_seed))
    return _on_devices[device]
