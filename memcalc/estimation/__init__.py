"""From a question to a prediction: joins catalogue, simulated GPU and allocator."""
