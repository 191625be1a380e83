"""Plans of products with a whole table."""

import torch

from tensoralg.nn import TiedOutput, TTMEmbedding


def test_a_table_of_one_core_is_multiplied_as_a_whole_in_eval_mode_too() -> None:
    output = TiedOutput(TTMEmbedding(7, 3, rank=1, row_shape=1, column_shape=1)).eval()
    assert output.explain(4).chosen == "dense"
    inputs = torch.eye(3)
    with torch.no_grad():
        torch.testing.assert_close(output(inputs), output.embedding.weight.mT)
