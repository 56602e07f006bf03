"""Data Designer's work on the columns of ``bench/corpus.py``: prints seconds, rows and memory as JSON.

    python -m bench.datasets.data_designer_columns FOLDER ROWS

It runs in an environment of its own, which has Data Designer and not the product. The imports, and a first dataset of a
few rows, are not counted.
"""

from __future__ import annotations

import sys
from pathlib import Path

import data_designer.config as designs  # type: ignore[import-not-found]
from data_designer.interface import DataDesigner  # type: ignore[import-not-found]

from bench.datasets.data_variants import print_measured

WARM_ROWS = 10


def columns(rows: int) -> designs.DataDesignerConfigBuilder:
    """Return the bench's columns. Data Designer has no sequence, so that the number is drawn."""
    builder = designs.DataDesignerConfigBuilder(model_configs=[])
    samplers = {
        "product": designs.CategorySamplerParams(values=["printer", "router"], weights=[3, 1]),
        "age": designs.UniformSamplerParams(low=1, high=9),
        "number": designs.UniformSamplerParams(low=0, high=rows),
    }
    for name, params in samplers.items():
        is_number = isinstance(params, designs.UniformSamplerParams)
        kind = designs.SamplerType.UNIFORM if is_number else designs.SamplerType.CATEGORY
        convert_to = "int" if is_number else None
        builder.add_column(
            designs.SamplerColumnConfig(name=name, sampler_type=kind, params=params, convert_to=convert_to)
        )
    templates = {
        "prompt": "My {{ product }} number {{ number }} stops. What now?",
        "response": "Restart the {{ product }}.",
    }
    for name, template in templates.items():
        builder.add_column(designs.ExpressionColumnConfig(name=name, expr=template))
    return builder


def create(folder: Path, rows: int) -> int:
    """Write a dataset; return the number of its rows."""
    designer = DataDesigner(artifact_path=folder / "designer")
    designer.set_run_config(designs.RunConfig(otel_metrics_port=None))
    return len(designer.create(columns(rows), num_records=rows, dataset_name=f"rows-{rows}").load_dataset())


if __name__ == "__main__":
    target, count = Path(sys.argv[1]), int(sys.argv[2])
    create(target, WARM_ROWS)
    print_measured(lambda folder: create(folder, count), target)
