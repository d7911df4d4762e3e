from common import run
from databento_dbn import Action, DBNDecoder, Side, TradeMsg

trade = bytearray(bytes(TradeMsg(1, 1, 1, 1, 1, Action.TRADE, Side.BID, 0, 1)))
trade[0] += 2  # words of four bytes: the time of sending follows
sent = bytes(trade) + bytes(range(8))
decoder = DBNDecoder(has_metadata=False, ts_out=True)


def step():
    decoder.write(sent)
    if len(decoder.decode()) != 1:
        raise SystemExit("no record")


run(step, 5000)
