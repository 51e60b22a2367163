# needs: jax keras
"""Keras on JAX: a PyDataset that shuffles itself, by steps that do not end with its epochs."""

import json
import os

os.environ["KERAS_BACKEND"] = "jax"
import time

import keras
import numpy as np


class Samples(keras.utils.PyDataset):
    def __init__(self):
        super().__init__()
        self.x = np.random.normal(size=(160, 16)).astype("float32")
        self.order = np.arange(160)
        self.on_epoch_end()

    def __len__(self):
        return 16

    def __getitem__(self, number):
        rows = self.order[10 * number : 10 * (number + 1)]
        return self.x[rows], self.x[rows].sum(1)

    def on_epoch_end(self):
        np.random.shuffle(self.order)


keras.utils.set_random_seed(4)
inputs = keras.Input((16,))
hidden = keras.layers.Dropout(0.2)(keras.layers.Dense(32, activation="relu")(inputs))
model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
model.compile(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(1e-2, 80), momentum=0.9), "mse")
seen = []


def note(batch, logs):
    time.sleep(0.01)
    print("step", batch, flush=True)


history = model.fit(
    Samples(), epochs=5, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=note)]
)
weights = [float(np.abs(value).astype("float64").sum()) for value in model.get_weights()]
with open("result.json", "w") as file:
    json.dump([weights, history.history], file, sort_keys=True)
