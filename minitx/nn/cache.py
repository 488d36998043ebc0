"""Keys and values that attention has already made, kept while a text is written token by token."""
from minitx import backend
from minitx.backend import xp_of
from minitx.nn.layers import check_size
from minitx.tensor import Tensor


class MemoryCache:
    """What cross-attention makes of the encoder's output: made once, at the first token, and the same for all others.

    It has Cache's methods, but is extended once only.
    """

    def __init__(self):
        self.held = {}                                  # attention layer: [keys, values], each (B, Hkv, S, K)

    def extend(self, layer, memory, project):
        """The keys and values of a layer, Tensors (B, Hkv, S, K): those that project() makes, when first asked.

        ValueError for a memory (B, S, C) of another shape than the first one.
        """
        if layer not in self.held:
            self.held[layer] = [_without_history(x) for x in project()]
        *batch, _, S, _ = self.held[layer][0].shape
        if memory.shape[:-1] != (*batch, S):
            raise ValueError(f"Cache: it holds what was made of a memory {(*batch, S)}, this is one of {memory.shape[:-1]}: "
                             "begin with a new one")
        return tuple(map(Tensor, self.held[layer]))

    def reorder(self, rows):
        """Go on with other rows of the batch: row i becomes what row rows[i] was."""
        self.held = {layer: [x[_checked(rows, x)] for x in pair] for layer, pair in self.held.items()}

    @property
    def nbytes(self):
        """Bytes of all keys and values."""
        return sum(x.nbytes for pair in self.held.values() for x in pair)


class Cache:
    """What a decoder's self-attention made of the tokens so far; `memory` is the same for its cross-attention.

    A model that is given one, `model(ids, cache=cache)`, reads ids as what follows all that the cache has seen: only the
    new tokens are run, and what the others left is looked up. Their keys and values are written behind the old ones,
    which stay where they are; where the room for `capacity` tokens is full, it is doubled. `length` counts the tokens.
    An attention_mask is that of all tokens, (B, length + T), and once given must be given every time.

    Without a tape only: RuntimeError where gradients are recorded. ValueError for a cache that holds another batch,
    dtype or model, or in which a call broke off. No layer may stand in a model twice.
    """

    def __init__(self, capacity=64):
        check_size("Cache", capacity=capacity)
        self.capacity, self.memory = capacity, MemoryCache()
        self.rooms = {}                                 # attention layer: [keys, values], each (B, Hkv, capacity, K)
        self.lengths = {}                               # attention layer: how many tokens of them are there
        self.masked = False                             # whether an attention_mask said which of them are padding

    def extend(self, layer, x, project):
        """All keys and values of a layer, Tensors (B, Hkv, S, K), after those that project() makes of the new tokens x."""
        new = [_without_history(x) for x in project()]
        start, n = self.lengths.get(layer, 0), new[0].shape[-2]
        first = next(iter(self.lengths), layer)
        if layer is not first and start != self.lengths[first] - n:
            raise ValueError("Cache: it holds what another model made, or a call broke off in it: begin with a new one")
        stop = start + n
        if stop > self.capacity:
            self.capacity = max(2 * self.capacity, stop)
        rooms = self.rooms.get(layer)
        for room, x in zip(rooms or (), new):
            if (*room.shape[:-2], room.shape[-1], room.dtype) != (*x.shape[:-2], x.shape[-1], x.dtype):
                raise ValueError(f"Cache: it holds {room.dtype} of shape {room[..., :start, :].shape}, the new tokens make "
                                 f"{x.dtype} of shape {x.shape}: begin with a new one")
        if rooms is None or rooms[0].shape[-2] < stop:
            larger = [xp_of(x).empty((*x.shape[:-2], self.capacity, x.shape[-1]), x.dtype) for x in new]
            for room, old in zip(larger, rooms or ()):
                room[..., :start, :] = old[..., :start, :]
            rooms = self.rooms[layer] = larger
        for room, x in zip(rooms, new):
            room[..., start:stop, :] = x
        self.lengths[layer] = stop
        return tuple(Tensor(room[..., :stop, :]) for room in rooms)

    @property
    def length(self):
        """How many tokens it has seen."""
        return max(self.lengths.values(), default=0)

    def reorder(self, rows):
        """Go on with other rows of the batch: row i becomes what row rows[i] was. rows is (B',), integers.

        Not in `memory`, which has its own reorder: beams of one source share it.
        """
        for layer, rooms in self.rooms.items():
            stop = self.lengths[layer]
            for i, room in enumerate(rooms):
                if len(rows) != len(room):
                    rooms[i] = xp_of(room).empty((len(rows), *room.shape[1:]), room.dtype)
                rooms[i][..., :stop, :] = room[_checked(rows, room), ..., :stop, :]

    @property
    def nbytes(self):
        """Bytes of the keys and values of the tokens so far, cross-attention's too; the room kept free not counted."""
        used = sum(room[..., :self.lengths[layer], :].nbytes for layer, rooms in self.rooms.items() for room in rooms)
        return used + self.memory.nbytes


def _checked(rows, x):
    """rows where array x is. TypeError unless they are integers, IndexError for one that x has not."""
    return backend.follow_index(rows, len(x), x)


def _without_history(x):
    if x.requires_grad:
        raise RuntimeError("a cache keeps no gradients: run the model under minitx.no_grad()")
    return x.data
