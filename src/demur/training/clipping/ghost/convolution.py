"""Convolutions: a kernel's gradient from patches and the output's cotangent.

A convolution is a product of patches with the kernel, so its gradient is a sum over
output pixels, as for a dense layer over positions. Patches are cut out by one strided
slice for each offset along each axis, one axis after the other. Channels stay last, as
they lie in most programs: neighbouring numbers are read and written together, and the
gradient comes out as a kernel [window..., channels, outputs].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from demur.training.clipping.factored_gradients import (
    FactoredGradients,
    ScanLoop,
    grouped,
)


@dataclass(frozen=True, eq=False)
class Convolution:
    """`conv_general_dilated` of data with a kernel that is a parameter."""

    params: dict[str, Any]
    kernel: tuple[int, ...]
    output: Any
    other: Any
    data_position = 0

    @property
    def precision(self) -> Any:
        """The precision asked for in the loss."""
        return self.params["precision"]

    @property
    def window(self) -> list[int]:
        """The spatial sizes of the kernel."""
        return [
            self.kernel[axis] for axis in self.params["dimension_numbers"].rhs_spec[2:]
        ]

    def _patches(self, data: Any, lead: int) -> Any:
        """[lead..., N, pixels..., window..., C] from [lead..., N, space..., C]."""
        params, first = self.params, lead + 1
        spare = [
            *[(0, 0, 0)] * first,
            *(
                (low, high, step - 1)
                for (low, high), step in zip(
                    params["padding"], params["lhs_dilation"], strict=True
                )
            ),
            (0, 0, 0),
        ]
        data = jax.lax.pad(data, jnp.zeros((), data.dtype), spare)
        for axis, size in enumerate(self.window):
            stride = params["window_strides"][axis]
            dilation = params["rhs_dilation"][axis]
            reach = (size - 1) * dilation + 1
            pixels = max(0, (data.shape[first + axis] - reach) // stride + 1)
            offsets = [
                jax.lax.slice_in_dim(
                    data,
                    offset * dilation,
                    offset * dilation + max(0, (pixels - 1) * stride + 1),
                    stride=stride,
                    axis=first + axis,
                )
                for offset in range(size)
            ]
            data = jnp.stack(offsets, axis=-2)
        return data

    def factors(
        self, data: Any, cotangent: Any, loops: Sequence[ScanLoop]
    ) -> FactoredGradients:
        """Patches against channels; groups of channels go with groups of outputs."""
        lead = len(loops) + 1
        groups = self.params["feature_group_count"]
        spec = self.params["dimension_numbers"]
        space = len(spec.lhs_spec) - 2

        def standard(array: Any, order: Sequence[int]) -> Any:
            """[lead..., N, space..., channels]."""
            order = [order[0], *order[2:], order[1]]
            return jnp.transpose(
                array, [*range(lead), *(lead + axis for axis in order)]
            )

        def split(array: Any) -> Any:
            return array.reshape((*array.shape[:-1], groups, array.shape[-1] // groups))

        patches = split(self._patches(standard(data, spec.lhs_spec), lead))
        outputs = split(standard(cotangent, spec.out_spec))
        places = [0, *range(1, 1 + space)]  # N and pixels
        window = range(1 + space, 1 + 2 * space)
        end = 1 + 2 * space
        left = grouped(patches, loops, ([end], places, [*window, end + 1]))
        right = grouped(outputs, loops, ([1 + space], places, [2 + space]))
        return FactoredGradients(left, right, self.precision)

    def restore(self, gradient: Any, loops: Sequence[ScanLoop]) -> Any:
        """G [S, I, O] as a kernel, stacked axes in front."""
        stack = [loop.length for loop in loops if loop.own_slice]
        groups = self.params["feature_group_count"]
        spec = self.params["dimension_numbers"].rhs_spec
        outputs, inputs = self.kernel[spec[0]], self.kernel[spec[1]]
        lead = len(stack)
        gradient = gradient.reshape(
            (*stack, groups, *self.window, inputs, outputs // groups)
        )
        gradient = jnp.moveaxis(gradient, (-1, -2), (lead + 1, lead + 2))
        gradient = gradient.reshape((*stack, outputs, inputs, *self.window))
        back = sorted(range(len(spec)), key=spec.__getitem__)
        return jnp.transpose(gradient, [*range(lead), *(lead + axis for axis in back)])
