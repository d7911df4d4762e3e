<?php
require "common.php";

$days = new DatePeriod(new DateTime("2020-01-01"), new DateInterval("P1D"), 3);
run(function () use ($days) {
    $iterator = $days->getIterator();
    $iterator->rewind();
    $iterator->current();
    $iterator->current();
}, 10_000);
