<?php
require "common.php";

openssl_pkey_export(openssl_pkey_new(["private_key_bits" => 2048]), $key);
run(fn() => @openssl_sign("data", $signature, $key, "no such algorithm"), 200);
