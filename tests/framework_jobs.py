"""Jobs of several processes under accelerate, Hugging Face's Trainer, Lightning and Ray Train; each notes the rows that it sees.

Started by torchrun as ``python -m torch.distributed.run … tests/framework_jobs.py JOB FOLDER``; Ray starts its processes itself. What
each process saw goes to ``FOLDER/RANK.json``: for each case a list of epochs, each a list of row numbers.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from functools import partial
from pathlib import Path

import torch
from torch.utils.data import DataLoader as StockLoader
from torch.utils.data import Dataset, DistributedSampler

from penstock.errors import NoMethodError, UsageError
from penstock.torch import CorgiPileDataset, DataLoader, UnorderedDataLoader

ROWS, BATCH, SKIPPED = 96, 4, 5
SAVED = 3 * ROWS // (2 * 2 * BATCH)  # steps: two processes are half-way in their second epoch


class Rows(Dataset):
    """Row numbers, by index."""

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return {"number": torch.tensor(index)}


class Noting(torch.nn.Module):
    """A model that notes the rows it learns from."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[list[int]] = []

    def forward(self, number, **_):
        if self.training:
            self.seen.append(number.tolist())
        return {"loss": (self.weight - number.float()).square().mean()}


def corgi(folder, **options):
    return CorgiPileDataset(folder / "rows.parquet", columns=["number"], batch_size=BATCH, seed=1, **options)


def streamed(folder, *, workers=0, **options):
    return StockLoader(corgi(folder), BATCH, num_workers=workers, multiprocessing_context=options.get("context"))


def stored(folder):
    return DataLoader(folder / "rows.parquet", BATCH, columns=["number"], shuffle="global", seed=1)


def unordered(**options):
    return UnorderedDataLoader(Rows(), BATCH, **({"shuffle": True} | options))


def shared():
    """A loader that shares rows out over processes by a sampler, and keeps its threads in frameworks that would replace it."""
    return unordered(shuffle=None, sampler=DistributedSampler(Rows(), seed=2))


def numbers(batches):
    return [row for batch in batches for row in batch["number"].tolist()]


def passes(loader, epochs=2):
    """Return the rows of each epoch; as many batches come as the loader says."""
    seen = []
    for _ in range(epochs):
        batches = [batch["number"].tolist() for batch in loader]
        assert len(batches) == len(loader), (len(batches), len(loader))
        seen.append([row for batch in batches for row in batch])
    return seen


def interrupted(make, hand_over=None):
    """Return the rows of three epochs; the second is left, and a loader that is handed the place goes on with it."""
    loader, again = make(), make()
    first = numbers(loader)
    loader.set_epoch(1)
    part = [batch for _, batch in zip(range(SKIPPED), loader, strict=False)]
    if hand_over is None:
        again.load_state_dict(loader.state_dict())
    else:
        hand_over(loader, again)
    return [first, numbers(part) + numbers(again), numbers(again)]


def run_ways(folder):
    """Have accelerate share samples out in each of its ways."""
    from accelerate import Accelerator, skip_first_batches
    from accelerate.utils import DataLoaderConfiguration

    ways = {
        "dispatched": DataLoaderConfiguration(),
        "sharded": DataLoaderConfiguration(dispatch_batches=False),
        "dispatched-split": DataLoaderConfiguration(split_batches=True),
        "sharded-split": DataLoaderConfiguration(split_batches=True, dispatch_batches=False),
    }
    seen = {}
    for name, way in ways.items():
        prepare = Accelerator(cpu=True, dataloader_config=way).prepare
        seen[f"streamed-{name}"] = passes(prepare(streamed(folder)))
        seen[f"unordered-{name}"] = passes(prepare(unordered()))
        loader = prepare(streamed(folder))
        rest = numbers(skip_first_batches(loader, SKIPPED))
        again = prepare(streamed(folder))
        first = [batch for _, batch in zip(range(SKIPPED), again, strict=False)]
        seen[f"streamed-{name}-skipped"] = [numbers(first) + rest]
    return seen


def run_accelerate(folder):
    from accelerate import Accelerator, skip_first_batches

    before = stored(folder)
    seen = run_ways(folder)
    accelerator = Accelerator(cpu=True)
    seen["streamed-workers"] = passes(accelerator.prepare(streamed(folder, workers=3)))
    seen["streamed-spawned"] = passes(accelerator.prepare(streamed(folder, workers=2, context="spawn")), 1)
    seen["streamed-itself"] = passes(streamed(folder))
    rest = numbers(skip_first_batches(streamed(folder), SKIPPED))
    seen["streamed-itself-skipped"] = [numbers(list(streamed(folder))[:SKIPPED]) + rest]
    seen["unordered-seed"] = passes(accelerator.prepare(unordered(seed=4)))
    skipped = skip_first_batches(accelerator.prepare(unordered(seed=4)), SKIPPED)
    first = [batch for _, batch in zip(range(SKIPPED), accelerator.prepare(unordered(seed=4)), strict=False)]
    seen["unordered-skipped"] = [numbers(first) + numbers(skipped)]

    assert accelerator.prepare(before) is before
    seen["stored"] = passes(before)
    before.set_epoch(7)
    first = numbers(batch for _, batch in zip(range(SKIPPED), before, strict=False))
    before.set_epoch(7)
    rest = skip_first_batches(before, SKIPPED)
    assert len(rest) == len(before) - SKIPPED
    seen["stored-skipped"] = [first + numbers(rest), *passes(before, 1)]
    assert before.epoch == 9

    def by_checkpoint(loader, again, name):
        for each, act in ((loader, "save_state"), (again, "load_state")):
            keeper = Accelerator(cpu=True)
            keeper.register_for_checkpointing(each)
            getattr(keeper, act)(str(folder / name))
            keeper.wait_for_everyone()

    for name, make in {"stored-registered": lambda: stored(folder), "unordered-registered": shared}.items():
        seen[name] = interrupted(make, partial(by_checkpoint, name=name))

    rank, world = accelerator.process_index, accelerator.num_processes
    try:
        next(iter(accelerator.prepare(StockLoader(corgi(folder, rank=rank, world=world), BATCH))))
    except UsageError:
        pass
    else:
        raise AssertionError("a share was shared out again")
    return seen


def run_hugging_face(folder):
    accelerate, trainer = run_accelerate(folder), run_trainer(folder)
    return accelerate | {f"trainer-{name}": seen for name, seen in trainer.items()}


def run_trainer(folder):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Own(Trainer):
        """Trains on a loader of its own."""

        def get_train_dataloader(self):
            return self.train_dataset.make(self.accelerator)

    class Made(Rows):
        """Rows that a loader is made for."""

        def __init__(self, make):
            self.make = make

    class Places(TrainerCallback):
        """Keeps the loader's place beside each checkpoint."""

        def __init__(self):
            self.saved = []

        def on_save(self, args, state, control, train_dataloader=None, **_):
            if isinstance(train_dataloader, DataLoader):
                self.saved.append(train_dataloader.state_dict())

    cases = {
        "streamed": (Trainer, corgi(folder)),
        "stored": (Own, Made(lambda _: stored(folder))),
        "unordered": (Own, Made(lambda accelerator: accelerator.prepare(unordered()))),
        "unordered-shared": (Own, Made(lambda _: shared())),
    }
    seen = {}
    for name, (kind, data) in cases.items():
        parts, places = [], Places()
        for resumed in (False, True):
            model = Noting()
            options = {"save_steps": SAVED, "save_strategy": "no" if resumed else "steps"}
            args = TrainingArguments(
                str(folder / name),
                per_device_train_batch_size=BATCH,
                num_train_epochs=2,
                use_cpu=True,
                report_to=[],
                ddp_find_unused_parameters=False,
                disable_tqdm=True,
                logging_strategy="no",
                dataloader_pin_memory=False,
                remove_unused_columns=False,
                **options,
            )
            trainer = kind(model, args, train_dataset=data, callbacks=[places])
            trainer.train(resume_from_checkpoint=str(folder / name / f"checkpoint-{SAVED}") if resumed else None)
            parts.append(model.seen)
        seen.update(told(name, *parts))
        if name == "stored":
            saved = [(place["epoch"], place["batches"]) for place in places.saved[:1]]
            assert saved == [(1, SAVED - ROWS // (2 * BATCH))], places.saved
            rest = stored(folder)
            rest.load_state_dict(places.saved[0])
            seen.update(told(f"{name}-state", parts[0], [numbers(rest)]))
    return seen


def told(name, whole, rest):
    """Return the epochs of a whole run, and the second as one that was interrupted and one that went on had it."""
    steps = ROWS // (2 * BATCH)
    epochs = [whole[:steps], whole[steps:], whole[steps:SAVED] + rest]
    return {name: [[row for batch in epoch for row in batch] for epoch in epochs]}


def run_lightning(folder):
    import pytorch_lightning as lightning
    from pytorch_lightning.callbacks import ModelCheckpoint

    class Module(lightning.LightningModule):
        def __init__(self, data=None):
            super().__init__()
            self.model, self.data = Noting(), data

        def training_step(self, batch, _):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    class Hooked(Module):
        def train_dataloader(self):
            return self.data()

    makers = {
        "stored": lambda: stored(folder),
        "unordered": unordered,
        "unordered-seed": lambda: unordered(seed=4),
        "unordered-in-order": lambda: unordered(shuffle=False),
        "streamed": lambda: streamed(folder),
    }

    def fit(make, *, hooked, checkpoint=None, **options):
        module = Hooked(make) if hooked else Module()
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=2,
            strategy="ddp",
            max_epochs=2,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **options,
        )
        trainer.fit(module, None if hooked else make(), ckpt_path=checkpoint)
        return module.model.seen

    seen = {}
    for name, make in makers.items():
        for hooked in (False, True) if name.startswith("unordered") else (False,):
            place = folder / f"{name}-{hooked}"
            saving = ModelCheckpoint(place, every_n_train_steps=SAVED, save_top_k=-1, filename="saved")
            whole = fit(make, hooked=hooked, callbacks=[saving])
            if name == "streamed":  # Lightning does not resume within an epoch of the stock loader
                seen.update(told(name, whole, whole[SAVED:]))
                continue
            rest = fit(make, hooked=hooked, checkpoint=place / "saved.ckpt", enable_checkpointing=False)
            seen.update(told(f"{name}{'-hooked' * hooked}", whole, rest))
    return seen


def run_ray(folder):
    """Have Ray start two processes; each writes down what it saw."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init("local", num_cpus=3, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
    run = RunConfig(name="job", storage_path=str(folder / "ray"))
    TorchTrainer(
        learn_in_ray, train_loop_config={"folder": folder}, scaling_config=ScalingConfig(num_workers=2), run_config=run
    ).fit()
    ray.shutdown()


def learn_in_ray(config):
    from ray.train.torch import prepare_data_loader

    folder = config["folder"]
    try:
        prepare_data_loader(stored(folder))
    except NoMethodError:
        pass
    else:
        raise AssertionError("a loader that shares rows out itself was prepared")
    seen = {
        "stored": interrupted(lambda: stored(folder)),
        "unordered-shared": interrupted(shared),
        "unordered-prepared": passes(prepare_data_loader(unordered())),
        "streamed": passes(streamed(folder)),
        "streamed-prepared": passes(prepare_data_loader(streamed(folder))),
    }
    note(folder, seen)


def note(folder, seen):
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(seen))


def main():
    job, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if job == "ray":
        return run_ray(folder)
    jobs = {"ways": run_ways, "hugging-face": run_hugging_face, "lightning": run_lightning}
    note(folder, jobs[job](folder))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads abort the interpreter's exit now and then, without Penstock too


if __name__ == "__main__":
    main()
