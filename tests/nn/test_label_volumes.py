"""Volumes of labels: reading through nibabel, or through a stand-in of it, and resampling."""

import gzip
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tensoralg.core.errors import PersistenceError, ShapeError
from tensoralg.nn import LabelVolume, VolumeReadingUnavailableError, read_label_volume

MIRRORED = np.array([[-2.0, 0, 0, 10], [0, 0, 3, 20], [0, -1, 0, 30], [0, 0, 0, 1]])


class ImageFileError(Exception):
    """As nibabel's."""


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """A nibabel that hands out one image, and the path of a file that exists."""
    image = SimpleNamespace(dataobj=np.zeros((2, 3, 4)), affine=np.eye(4))
    module = SimpleNamespace(
        load=lambda path: image,
        as_closest_canonical=lambda given: given,
        filebasedimages=SimpleNamespace(ImageFileError=ImageFileError),
    )
    monkeypatch.setitem(sys.modules, "nibabel", module)
    path = tmp_path / "a.nii"
    path.touch()
    return module, image, path


def test_without_nibabel_the_message_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "nibabel", None)
    with pytest.raises(VolumeReadingUnavailableError, match="pip install nibabel"):
        read_label_volume(tmp_path / "a.nii")


def test_labels_and_spacing_come_from_the_image(stand_in):
    _, image, path = stand_in
    image.dataobj = np.arange(24.0).reshape(2, 3, 4, 1)  # files often hold floating numbers
    image.affine = MIRRORED
    volume = read_label_volume(path)
    assert volume.labels.dtype == np.int64
    assert volume.labels.shape == (2, 3, 4)
    assert volume.spacing.tolist() == [2.0, 1.0, 3.0]


def test_what_is_no_volume_of_labels_is_named(stand_in):
    module, image, path = stand_in
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_label_volume(path.with_name("b.nii"))
    for shape in [(2, 3), (2, 3, 4, 2)]:
        image.dataobj = np.zeros(shape)
        with pytest.raises(ShapeError, match="must hold one volume"):
            read_label_volume(path)
    image.dataobj = np.full((2, 3, 4), 0.5)
    with pytest.raises(ValueError, match=r"a\.nii must be whole numbers; got 0\.5"):
        read_label_volume(path)

    def broken(_):
        raise ImageFileError("no header")

    module.load = broken
    with pytest.raises(PersistenceError, match="cannot be read as a volume: no header"):
        read_label_volume(path)


def test_nibabels_own_files(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    labels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    nibabel.save(nibabel.Nifti1Image(labels, MIRRORED), tmp_path / "a.nii.gz")
    volume = read_label_volume(tmp_path / "a.nii.gz")
    # stored to the left, downwards and to the front: read to the right, front and upwards
    assert np.array_equal(volume.labels, labels[::-1, ::-1].transpose(0, 2, 1))
    assert volume.spacing.tolist() == [2.0, 3.0, 1.0]
    place = volume.affine @ [0, 1, 2, 1]
    stored = np.argwhere(labels == volume.labels[0, 1, 2])[0]
    assert np.allclose(place, MIRRORED @ [*stored, 1])
    (tmp_path / "b.nii.gz").write_bytes(b"nothing")
    with pytest.raises(PersistenceError):
        read_label_volume(tmp_path / "b.nii.gz")
    nibabel.save(nibabel.gifti.GiftiImage(), tmp_path / "c.gii")
    with pytest.raises(PersistenceError, match="GiftiImage is no image of voxels"):
        read_label_volume(tmp_path / "c.gii")


@pytest.mark.parametrize("harm", ["byte", "end"])
def test_damaged_files_are_refused_not_read(stand_in, tmp_path, harm):
    """Readers that stop at the last voxel never see the checksum."""
    path = tmp_path / "a.nii.gz"
    random = np.random.default_rng(0).integers(0, 256, 4000).astype(np.uint8)
    path.write_bytes(gzip.compress(random.tobytes()))
    assert read_label_volume(path).labels.shape == (2, 3, 4)
    content = bytearray(path.read_bytes())
    if harm == "byte":
        content[2000] ^= 1  # stored as it is: still a stream that can be unpacked
    path.write_bytes(content if harm == "byte" else content[:2000])
    with pytest.raises(PersistenceError, match="cannot be read as a volume"):
        read_label_volume(path)


def test_resampling_takes_the_nearest_voxel():
    labels = np.random.default_rng(0).integers(0, 9, (7, 6, 5))
    volume = LabelVolume(labels, np.array([1.0, 2.0, 1.5]), np.diag([1.0, 2.0, 1.5, 1.0]))
    coarse = volume.resampled((2.0, 2.0, 4.0))
    assert coarse.labels.shape == (4, 6, 2)
    assert coarse.spacing.tolist() == [2.0, 2.0, 4.0]
    for index in np.ndindex(*coarse.labels.shape):
        place = np.linalg.solve(volume.affine, coarse.affine @ [*index, 1])[:3]
        near = np.clip(np.floor(place + 0.5).astype(int), 0, np.array(labels.shape) - 1)
        assert coarse.labels[index] == labels[tuple(near)]
    assert np.array_equal(volume.resampled(volume.spacing).labels, labels)
    fine = volume.resampled(volume.spacing / 3)
    assert np.array_equal(fine.labels[1::3, 1::3, 1::3], labels)
    with pytest.raises(ShapeError, match="spacing"):
        volume.resampled((1.0, 2.0))
    with pytest.raises(ValueError, match="spacing must be positive"):
        volume.resampled(0.0)
