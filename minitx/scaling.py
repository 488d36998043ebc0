"""Loss scaling: gradients of float16, made large enough not to vanish."""
import math
import operator

from minitx.backend import xp_of
from minitx.optimizer import Optimizer, wide


class GradScaler:
    """Multiplies a loss, so that gradients of float16 keep small numbers, and its gradients back before the step.

        scaler = optim.GradScaler()
        for ids, targets in batches:
            loss = ops.cross_entropy(model(ids), targets)           # a model.to(dtype="float16")
            optimiser.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimiser)                              # only to look at gradients, or to clip them, here:
            optim.clip_grad_norm(model.parameters(), 1.0)
            scaler.step(optimiser)
            scaler.update()

    Where a gradient is not finite, the loss was multiplied by too much, and `step` leaves parameters and optimiser as they
    are. `update` then multiplies the scale by backoff_factor, and by growth_factor after growth_interval good steps in a
    row. Whether all is well is found out where the gradients are, and looked at once a step. Names and numbers are
    PyTorch's; as there, init_scale is meant to be too large at first. On the CPU NumPy warns of each overflow; CuPy never
    does. Micikevicius et al. 2018, "Mixed Precision Training", section 3.2.

    ValueError for numbers that cannot be, RuntimeError for methods in the wrong order.
    """

    def __init__(self, init_scale=2.0 ** 16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self._set(scale=init_scale, growth_factor=growth_factor, backoff_factor=backoff_factor,
                  growth_interval=growth_interval, good_steps=0)

    def scale(self, loss):
        """loss times the scale: what to call backward() of."""
        return loss * self._scale

    def unscale_(self, optimiser):
        """Divide the gradients of an optimiser by the scale; float16 ones become float32, where nothing vanishes.

        RuntimeError where that was done, or the step taken, since the last update().
        """
        if not isinstance(optimiser, Optimizer):
            raise TypeError(f"GradScaler: expected an optimiser, got {type(optimiser).__name__}")
        if optimiser in self._found:
            raise RuntimeError("GradScaler: the gradients of this optimiser are unscaled already; call update() after each "
                               "step")
        finite = None
        for p, g in optimiser.gradients():
            fine = xp_of(g).isfinite(g).all()
            finite = fine if finite is None else finite & fine
            p.grad = g.astype(wide(g), copy=False) / self._scale
        self._found[optimiser] = finite

    def step(self, optimiser):
        """Take the optimiser's step, or skip it where a gradient is not finite; unscale_ first, if nobody has.

        RuntimeError for a second step without update() between.
        """
        if optimiser in self._stepped:
            raise RuntimeError("GradScaler: this optimiser's step was taken already; call update() after each step")
        if optimiser not in self._found:
            self.unscale_(optimiser)
        finite = self._found[optimiser]
        self._stepped[optimiser] = finite is None or bool(finite)   # here the host waits for a GPU
        if self._stepped[optimiser]:
            optimiser.step()

    def update(self):
        """Make the scale fit for the next step, from how those since the last update went. RuntimeError if none was."""
        if not self._stepped:
            raise RuntimeError("GradScaler: there was no step since the last update; call step(optimiser) first")
        if not all(self._stepped.values()):
            self._scale, self._good_steps = max(self._scale * self._backoff_factor, SMALLEST), 0
        else:
            self._good_steps += 1
            if self._good_steps == self._growth_interval:
                grown = self._scale * self._growth_factor
                self._scale, self._good_steps = grown if grown < LARGEST else self._scale, 0
        self._found, self._stepped = {}, {}

    def get_scale(self):
        """What the next loss is multiplied by, a float."""
        return self._scale

    def state_dict(self):
        """{name: number} of all that the scaler goes by."""
        return {name: getattr(self, f"_{name}") for name in NAMES}

    def load_state_dict(self, state):
        """Go on from a state_dict(). ValueError where it is none; then nothing is changed."""
        if not isinstance(state, dict) or state.keys() != set(NAMES):
            raise ValueError(f"GradScaler: a state has {', '.join(NAMES)}; got {state!r}")
        self._set(**state)

    def _set(self, **numbers):
        scale, growth, backoff, interval, good = (numbers[name] for name in NAMES)
        try:
            fits = (0 < scale < LARGEST and 1 < growth < math.inf and 0 < backoff < 1
                    and 0 <= operator.index(good) < operator.index(interval))
        except TypeError:
            fits = False
        if not fits:
            raise ValueError("GradScaler: a scale lies above 0, a growth_factor above 1, a backoff_factor between 0 and 1, "
                             f"and a growth_interval is a whole number, at least 1; got {numbers}")
        vars(self).update({f"_{name}": float(numbers[name]) for name in NAMES[:3]}, _growth_interval=int(interval),
                          _good_steps=int(good))
        self._found, self._stepped = {}, {}                 # of each optimiser: are its gradients finite; was its step taken


NAMES = ("scale", "growth_factor", "backoff_factor", "growth_interval", "good_steps")
SMALLEST, LARGEST = 2.0 ** -126, 2.0 ** 127                 # a loss is float32
