"""SpeechBrain: a Brain trains ECAPA-TDNN.

Requires: speechbrain
"""

import speechbrain as sb
import torch
from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN, Classifier


class B(sb.Brain):
    def compute_forward(self, batch, stage):
        return self.modules.cls(self.modules.emb(batch[0].to(self.device)))

    def compute_objectives(self, out, batch, stage):
        return torch.nn.functional.cross_entropy(out.squeeze(1), batch[1].to(self.device))


mods = {
    "emb": ECAPA_TDNN(40, channels=[64, 64, 64, 64, 192], lin_neurons=64),
    "cls": Classifier(64, out_neurons=8),
}
brain = B(mods, lambda p: torch.optim.Adam(p, 1e-3), run_opts={"device": "cuda:0"})
data = [(torch.randn(8, 100, 40), torch.randint(0, 8, (8,))) for _ in range(5)]
brain.fit(range(1), data, progressbar=False, train_loader_kwargs={"batch_size": None})
