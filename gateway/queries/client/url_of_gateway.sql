-- Where the control API of a gateway is. $1: the gateway's id.
SELECT internal_url FROM gateways WHERE id = $1
