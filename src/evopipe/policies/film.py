"""Films of frames: GIF and WebP by Pillow, MP4 by the `ffmpeg` that imageio-ffmpeg brings.

A frame is `[H, W, 3]` uint8. A film is opened with its frames per second, gets one frame after another, and is written
when its `with` block ends without an error.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evopipe.errors import UsageError
from evopipe.storage.files import write_bytes

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL import Image

    Show = Callable[[npt.NDArray[np.uint8]], None]
    Film = Callable[[int], AbstractContextManager[Show]]

_RATE = 30  # frames a second; viewers slow down what is too fast for them


@dataclass
class FilmFrames:
    """A collector of frames for an animation, which keeps evenly spaced frames if there are too many.

    At most 30 frames per second are kept.

    Attributes:
        width: the largest width in pixels; wider frames are scaled down.
        most: the largest number of kept images.
        colours: the number of colours to which images are reduced; None for all colours.
        images: the kept images.
        fps: the number of frames per second of the original.
        shown: the number of frames so far, kept or not.
        every: the number of frames from one kept frame to the next: 2 if every second frame is kept.
    """

    width: int
    most: float = math.inf
    colours: int | None = None
    images: list[Image.Image] = field(default_factory=list)
    fps: int = _RATE
    shown: int = 0
    every: int = 1

    @contextlib.contextmanager
    def begin(self, fps: int) -> Iterator[Show]:
        """Begin to collect an animation; yield the function to call with each frame, `[H, W, 3]` uint8.

        `fps` is the number of frames per second.
        """
        self.fps, self.every = fps, math.ceil(fps / _RATE)
        yield self._show

    def _show(self, frame: npt.NDArray[np.uint8]) -> None:
        from PIL import Image

        self.shown += 1
        if (self.shown - 1) % self.every:
            return
        image = Image.fromarray(frame)
        if image.width > self.width:
            height = max(1, round(image.height * self.width / image.width))
            image = image.resize((self.width, height), Image.Resampling.BOX)
        if self.colours is not None:
            image = image.quantize(self.colours, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        self.images.append(image)
        if len(self.images) > self.most:
            self.images, self.every = self.images[::2], 2 * self.every

    @property
    def gap(self) -> float:
        """The time between two kept images in milliseconds, for an animation at the original speed."""
        return 1000 * self.every / self.fps


def animate(images: Sequence[Image.Image], kind: str, gap: float, unit: int, rest: int = 0, **options: Any) -> bytes:
    """Return the bytes of an animated GIF or WEBP that repeats.

    Args:
        images: the images, one or more.
        kind: the format, as Pillow names it.
        gap: milliseconds between two images.
        unit: the format's unit of time in milliseconds, such as 10 for GIF, to which times are rounded.
        rest: additional milliseconds for which the last image is shown.
        options: options of Pillow's `Image.save`.
    """
    times = [unit * round(gap * number / unit) for number in range(len(images) + 1)]  # rounded, so no error adds up
    gaps = [b - a for a, b in itertools.pairwise((*times[:-1], times[-1] + rest))]
    stream = io.BytesIO()
    images[0].save(stream, kind, save_all=True, append_images=images[1:], duration=gaps, loop=0, **options)
    return stream.getvalue()


@contextlib.contextmanager
def gif(path: Path, fps: int) -> Iterator[Show]:
    """Write to `path` an animated GIF, at most 400 pixels wide, at the end of the `with` block.

    The context manager yields a function, which must be called with each frame `[H, W, 3]` uint8. `fps` is the number
    of frames per second.

    Raises:
        DiskError: the file cannot be written.
    """
    frames = FilmFrames(400, colours=128)
    with frames.begin(fps) as show:
        yield show
    write_bytes(path, animate(frames.images, "GIF", frames.gap, unit=10, optimize=False))


@contextlib.contextmanager
def mp4(path: Path, fps: int) -> Iterator[Show]:
    """Write to `path` an H.264 film with every frame in full size, at the end of the `with` block.

    The context manager yields a function, which must be called with each frame `[H, W, 3]` uint8. `fps` is the number
    of frames per second.

    Raises:
        UsageError: the extra `video` is not installed.
        DiskError: the file cannot be written.
    """
    try:
        import imageio_ffmpeg
    except ImportError:
        raise UsageError('MP4 needs the extra `video`: pip install "evopipe[video]"; GIF needs none') from None
    encoder: Any = None
    with tempfile.TemporaryDirectory(prefix="evopipe-film-") as folder:
        part = Path(folder, "film.mp4")

        def show(frame: npt.NDArray[np.uint8]) -> None:
            nonlocal encoder
            height, width = frame.shape[:2]
            even = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")  # the codec halves both
            if encoder is None:
                size, flags = (even.shape[1], even.shape[0]), ["-movflags", "+faststart"]
                options = {"macro_block_size": 1, "ffmpeg_log_level": "error", "output_params": flags}
                encoder = imageio_ffmpeg.write_frames(str(part), size, fps=fps, **options)
                encoder.send(None)
            encoder.send(np.ascontiguousarray(even))

        try:
            yield show
        finally:
            if encoder is not None:
                encoder.close()
        write_bytes(path, part.read_bytes())
