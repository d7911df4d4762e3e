"""What instructions say where no table does: prologues, epilogues, Arm decoding."""
