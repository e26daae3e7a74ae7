"""neuralforecast: windows of series that the GPU counts, through Lightning.

Requires: neuralforecast
"""

import numpy as np
import pandas as pd
from neuralforecast import NeuralForecast
from neuralforecast.models import NHITS

days = pd.date_range("2020", periods=300)
series = {"unique_id": np.repeat(["a", "b", "c"], 300), "ds": np.tile(days, 3)}
frame = pd.DataFrame({**series, "y": np.random.randn(900)})
quiet = {"accelerator": "gpu", "logger": False, "enable_checkpointing": False}
model = NHITS(h=12, input_size=48, max_steps=4, batch_size=32, **quiet)
forecast = NeuralForecast(models=[model], freq="D")
forecast.fit(frame)
print(forecast.predict().shape)
