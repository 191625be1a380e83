from tensoralg import completely_positive as completely_positive
from tensoralg import errors as errors
from tensoralg import mixtures as mixtures
from tensoralg import nn as nn
from tensoralg import polyadic as polyadic
from tensoralg import studies as studies
from tensoralg import symmetric as symmetric
from tensoralg.core.decompositions import SymmetricDecomposition as SymmetricDecomposition
from tensoralg.core.incomplete_tensor import (
    IncompleteSymmetricTensor as IncompleteSymmetricTensor,
)
from tensoralg.core.kruskal_tensor import KruskalTensor as KruskalTensor
from tensoralg.core.persistence import load as load
from tensoralg.core.persistence import save as save
from tensoralg.core.symmetric_tensor import SymmetricTensor as SymmetricTensor
from tensoralg.core.tensor_train import TensorTrain as TensorTrain
from tensoralg.core.tensor_train import TensorTrainMatrix as TensorTrainMatrix

__version__: str
