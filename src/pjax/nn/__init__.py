"""Networks: modules with named parameters, which train by projections and by gradients alike."""

from pjax.containers.numpy import cross_entropy as cross_entropy
from pjax.containers.numpy import margin_loss as margin_loss
from pjax.containers.numpy import squared_error as squared_error
from pjax.nn._module import Module as Module
from pjax.nn._module import Parameter as Parameter
from pjax.nn._module import freeze as freeze
from pjax.nn.attention import MultiHeadAttention as MultiHeadAttention
from pjax.nn.images import Conv2D as Conv2D
from pjax.nn.images import GlobalMaxPool as GlobalMaxPool
from pjax.nn.images import MaxPool as MaxPool
from pjax.nn.layers import Concat as Concat
from pjax.nn.layers import Embedding as Embedding
from pjax.nn.layers import Linear as Linear
from pjax.nn.layers import Quantize as Quantize
from pjax.nn.layers import ReLU as ReLU
from pjax.nn.layers import Sequential as Sequential
from pjax.nn.rnn import RNN as RNN
