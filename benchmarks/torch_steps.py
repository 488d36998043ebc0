"""What is measured of the models in PyTorch: a training step or a reading, after both sides were seen to agree."""
import itertools

import numpy as np
import torch
import torch.nn.functional as F
import workloads
from torch_models import arrange, twin
from workloads import ADAMW, DECAY

import minitx as mt
from minitx import backend


class Disagreement(Exception):
    """The two sides do not compute the same: there is nothing to compare."""


def adamw(model, lr, betas, weight_decay):
    """AdamW that decays matrices and embeddings and leaves the vectors alone."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": weight_decay},
                              {"params": vectors, "weight_decay": 0.0}], lr=lr, betas=betas, fused=True)


def loss_of(model, batch):
    """The loss on one batch of Tensors."""
    inputs, targets = batch
    logits = model(*inputs)
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def tensors(batch, device="cpu"):
    """A batch of arrays as one of Tensors."""
    inputs, targets = batch
    return (tuple(torch.from_numpy(x).to(device) for x in inputs),
            None if targets is None else torch.from_numpy(targets).to(device))


def training_step(model, batches, half=False):
    """A function that takes one training step, on the next batch each time, and returns the loss.

    half: under autocast to float16, with loss scaling. The model says on which device.
    """
    device = next(model.parameters()).device.type
    optimiser, scaler = adamw(model, **ADAMW, weight_decay=DECAY), torch.amp.GradScaler(device, enabled=half)
    batches = itertools.cycle(batches)

    def step():
        batch = tensors(next(batches), device)
        with torch.autocast(device, torch.float16, enabled=half):
            loss = loss_of(model, batch)
        optimiser.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimiser)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimiser)
        scaler.update()
        return loss.item()
    return step


def inference(model, batches, half=False):
    """A function that reads the next batch under inference_mode; the result as an array. half: autocast to float16."""
    device = next(model.parameters()).device.type
    model.eval()
    batches = itertools.cycle(batches)

    @torch.inference_mode()
    def read():
        inputs, _ = tensors(next(batches), device)
        with torch.autocast(device, torch.float16, enabled=half):
            return model(*inputs).cpu().numpy()
    return read


def step_of(work, model, half=False):
    """What is measured of a workload: the training step, or reading, of its twin."""
    return (training_step if work.is_trained else inference)(model, work.batches, half)


def both_steps(work):
    """(ours, theirs) of a workload, from the same weights. Disagreement where they do not compute the same."""
    ours = work.build()
    theirs = twin(ours)
    (agree_in_training if work.is_trained else agree_in_reading)(ours, theirs, work.batches[0])
    return workloads.step_of(work, ours), step_of(work, theirs)


def agree_in_training(ours, theirs, batch):
    """Disagreement unless the losses are within 1e-5, and in float64 every gradient within 1e-7 of its largest entry.

    In float32 one number beside a bend of ReLU, a rounding to its left or right, changes a gradient by a thousandth.
    """
    check("losses", workloads.loss_of(ours, batch).numpy(), loss_of(theirs, tensors(batch)).detach().numpy(), 1e-5)
    for p in (*ours.parameters(), *theirs.parameters()):
        p.grad = None
    ours.to(dtype=np.float64), theirs.double()
    wide = tuple(x.astype(np.float64) if x.dtype == np.float32 else x for x in batch[0]), batch[1]
    workloads.loss_of(ours, wide).backward()
    loss_of(theirs, tensors(wide)).backward()
    expected = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    found = arrange({name: backend.to_numpy(p.grad) for name, p in ours.named_parameters()}, expected)
    for name, gradient in expected.items():
        check(f"gradients of {name}", found[name], gradient, 1e-7)
    ours.to(dtype=np.float32), theirs.float()
    for p in (*ours.parameters(), *theirs.parameters()):
        p.grad = None


def agree_in_reading(ours, theirs, batch):
    """Disagreement unless the results are within 1e-4 of their largest entry."""
    with mt.no_grad(), torch.inference_mode():
        check("results", ours.eval()(*batch[0]).numpy(), theirs.eval()(*tensors(batch)[0]).numpy(), 1e-4)


def check(what, found, expected, allowed):
    """Disagreement where two arrays differ by more than `allowed` of the largest entry, or of 1e-3 if that is larger."""
    gap = np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-3)
    if not gap <= allowed:
        raise Disagreement(f"the two sides do not compute the same: {what} differ by {gap:.1e} of the largest entry, "
                           f"allowed are {allowed:.0e}")
