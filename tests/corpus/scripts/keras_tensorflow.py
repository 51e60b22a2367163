# needs: tensorflow keras
"""Keras on TensorFlow: a model of the script's own, over tf.data that shuffles."""

import json
import os

os.environ["KERAS_BACKEND"] = "tensorflow"
import time

import keras
import numpy as np
import tensorflow as tf


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(32, activation="relu")
        self.drop = keras.layers.Dropout(0.2)
        self.last = keras.layers.Dense(1)

    def call(self, x, training=False):  # noqa: FBT002 - Keras's
        return self.last(self.drop(self.first(x), training=training))


keras.utils.set_random_seed(5)
x = np.random.normal(size=(200, 16)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x.sum(1))).shuffle(200).batch(16)
losses = []


def note(batch, logs):
    time.sleep(0.01)
    print("step", batch, flush=True)


model = Net()
model.compile("adam", "mse", metrics=["mae"])
history = model.fit(
    data, epochs=5, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=note)]
)
again = model.fit(
    x, x.sum(1), epochs=2, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=note)]
)
weights = [float(np.abs(value).astype("float64").sum()) for value in model.get_weights()]
with open("result.json", "w") as file:
    json.dump([weights, history.history, again.history], file, sort_keys=True)
