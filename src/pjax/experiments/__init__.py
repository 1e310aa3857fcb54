"""Experiments: data sets, the paper's networks and baselines, training, comparisons, reports.

The command line, `pjax`, is a thin layer over the functions of the modules, which need the extra
``experiments``:

- `data.load`, `data.get`: data sets.
- `models.MLP`, `models.CNN`, `models.RNN`: the paper's networks.
- `own_data`, `own_model`: data and networks of your own. `loggers`: where metrics go.
- `config.Config`: what a run is. `train.train`, `train.load_params`: run it, and get what it has learnt.
  `evaluate`: what it makes of other data.
- `compare.compare`: the blocks of the paper's tables. `report.report`: tables and plots of results.
"""
