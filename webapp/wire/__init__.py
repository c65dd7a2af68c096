"""The request and response models, by noun: OpenAI's API, and this project's extensions.

Models of one noun import the fields and the lists that they share. Routes import a model from the module that has it.
"""
