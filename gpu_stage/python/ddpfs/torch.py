# SPDX-License-Identifier: Apache-2.0
"""Stage as a PyTorch IterableDataset: DataLoader(dataset, batch_size=None), or a plain loop."""

from torch.utils.data import IterableDataset, get_worker_info

from ddpfs.stage import Stage


class StageDataset(IterableDataset):
    """A stage as a data set.  Takes the arguments of Stage, and transform: a function of a Batch.  Without it an
    item is a list of uint8 tensors: views of the arena or, with backend="cuda", of GPU memory.  The library reads
    with its own threads, so use num_workers=0."""

    def __init__(self, dataset, batch=1, *, transform=None, **options):
        self.stage = Stage(dataset, batch, **options)
        self.transform = transform

    def __iter__(self):
        worker = get_worker_info()
        if worker is not None:
            raise RuntimeError("a StageDataset reads with threads of its own: use DataLoader(num_workers=0)")
        return (self._made(batch) for batch in self.stage)

    def _made(self, batch):
        if self.transform is not None:
            return self.transform(batch)
        return [batch.tensor(i) for i in range(len(batch))]

    def __len__(self):
        """The number of batches of a whole epoch, also after a resume in the middle of one: loaders count against
        it."""
        return self.stage.batches(self.stage.position[0] + 1)

    def set_epoch(self, epoch):
        self.stage.set_epoch(epoch)

    def state_dict(self):
        return self.stage.state_dict()

    def load_state_dict(self, state):
        self.stage.load_state_dict(state)
