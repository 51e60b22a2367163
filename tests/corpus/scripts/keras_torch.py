# needs: torch keras
"""Keras on PyTorch: validation, the best model, early stopping, a plateau, a CSV log."""

import json
import os

os.environ["KERAS_BACKEND"] = "torch"
import time

import keras
import numpy as np


class Steps(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.01)
        self.seen.append([batch, logs["loss"]])
        print("step", batch, flush=True)


keras.utils.set_random_seed(3)
x = np.random.normal(size=(203, 16)).astype("float32")
y = x.sum(1)
model = keras.Sequential(
    [
        keras.Input((16,)),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(1),
    ]
)
model.compile(keras.optimizers.AdamW(3e-2), "mse", metrics=["mae"])
steps = Steps()
history = model.fit(
    x,
    y,
    batch_size=16,
    epochs=8,
    verbose=0,
    validation_split=0.2,
    callbacks=[
        keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau(patience=1),
        keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True),
        keras.callbacks.CSVLogger("log.csv"),
        steps,
    ],
)
best = keras.models.load_model("best.keras").evaluate(x, y, verbose=0)
weights = [float(np.abs(value).astype("float64").sum()) for value in model.get_weights()]
with open("result.json", "w") as file:
    json.dump([weights, best, steps.seen, history.history, open("log.csv").read()], file, sort_keys=True)
