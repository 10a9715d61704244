"""What all papers share: devices, random numbers, batched training, results, figures, sliders."""
