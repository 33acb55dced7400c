// Which files of this folder make a script, in their order. Tests include this list, too.
scripts! {
    ACQUIRE: "base", "counter", "grant", "take", "value", "lock", "wait", "acquire";
    CONFIRM: "base", "counter", "grant", "value", "lock", "wait", "confirm";
    BREAK: "base", "free", "counter", "grant", "value", "lock", "break";
    RELEASE: "base", "free", "let_go", "counter", "grant", "value", "lock", "release";
    RENEW: "value", "renew";
    HEARTBEAT: "counter", "heartbeat";
    INSPECT: "value", "holder", "inspect";
    WAITED_FOR: "value", "holder", "waited_for";
    LEADER: "value", "holder", "leader";
    PROCLAIM: "counter", "value", "holder", "proclaim";
    READ_RECORD: "read_record";
    WRITE_RECORD: "value", "write_record";
    LEAVE: "counter", "grant", "value", "lock", "leave";
}
