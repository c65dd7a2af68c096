"""What Python programs call: `batchyard.map`, from the rows of a table to the answers of a model."""
