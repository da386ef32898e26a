"""Data sets of samples as other tools write them: Hugging Face folders, folders of images, WebDataset tars, MDS shards.

They cannot be read in blocks as they are; `convert` reads each once, from front to back. `formats` has the table of them
and tells which one a path holds; each is read by a file of its own, without the library that wrote it.
"""
