"""Train with Hugging Face's Trainer, or with ElasticTrainer, and write what was logged.

    python3 hugging_face.py CLASS KIND FILE

KIND is `dropout`, a network whose batches do not divide the data, or `language`, a tiny GPT-2 in bf16.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from trainer.transformers import ElasticTrainer
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

TIMES = ("runtime", "per_second")


class Network(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, 3))

    def forward(self, x, labels=None):
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Samples(torch.utils.data.Dataset):
    def __init__(self, kind, count):
        generator = torch.Generator().manual_seed(1)
        self.is_text, self.count = kind == "language", count
        self.x = torch.rand(count, 8, generator=generator)
        self.labels = torch.randint(0, 3, (count,), generator=generator)
        self.tokens = torch.randint(0, 64, (count, 12), generator=generator)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if not self.is_text:
            return {"x": self.x[index], "labels": self.labels[index]}
        labels = self.tokens[index].clone()
        labels[4 + index % 8 :] = -100  # texts have different lengths
        return {"input_ids": self.tokens[index], "labels": labels}


def main(name, kind, file):
    set_seed(0)
    size = {"vocab_size": 64, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
    is_text = kind == "language"
    model = GPT2LMHeadModel(GPT2Config(**size)) if is_text else Network(0.3 if kind == "dropout" else 0.0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=3,
            num_train_epochs=3,
            logging_steps=2,
            eval_strategy="steps",
            eval_steps=5,
            save_strategy="no",
            learning_rate=1e-2,
            warmup_steps=3,
            bf16=is_text,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        )
        chosen = {"Trainer": Trainer, "ElasticTrainer": ElasticTrainer}[name]
        trainer = chosen(
            model=model, args=arguments, train_dataset=Samples(kind, 50), eval_dataset=Samples(kind, 10)
        )
        result = trainer.train()
    if trainer.is_world_process_zero():
        history = [
            {key: value for key, value in entry.items() if not key.endswith(TIMES)}
            for entry in trainer.state.log_history
        ]
        weights = float(sum(value.double().sum() for value in trainer.model.parameters()))
        Path(file).write_text(json.dumps([history, weights, result.training_loss]))


if __name__ == "__main__":
    main(*sys.argv[1:])
