"""The chapter on lazy training: experiments, pictures, exercises."""
