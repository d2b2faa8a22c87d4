-- Carries out prepared changes. The caller decided them; nothing is decided here.
--
-- ARGV from `first` on is a list of: operation, number of its key counted from `base`, how
-- many arguments, the arguments. Whatever is not named below is a command of the server.

local function key_at(base, number)
    return KEYS[base + tonumber(number)]
end

-- Live rows that end: each goes to the ended ones, behind how it ended.
-- Arguments: key number of the ended ones; then task, how it ended; and so on.
local function end_tasks(live, base, first, last)
    local ended = key_at(base, ARGV[first])
    local tasks, count = {}, 0
    for i = first + 1, last, 2 do
        count = count + 1
        tasks[count] = ARGV[i]
    end
    local rows = redis.call('HMGET', live, unpack(tasks))
    local moved, size = {}, 0
    for i = 1, count do
        if rows[i] then
            moved[size + 1] = tasks[i]
            moved[size + 2] = ARGV[first + 2 * i] .. rows[i]
            size = size + 2
        end
    end
    if size > 0 then
        redis.call('HSET', ended, unpack(moved))
        redis.call('HDEL', live, unpack(tasks))
    end
end

-- The row that stands behind how a task ended; four bytes before that say how long it is.
local function row_of(value)
    local a, b, c, d = string.byte(value, 1, 4)
    return string.sub(value, 5 + ((a * 256 + b) * 256 + c) * 256 + d)
end

-- Ended tasks that live again. Arguments: key number of the live rows; then the tasks.
local function revive_tasks(ended, base, first, last)
    local live = key_at(base, ARGV[first])
    for i = first + 1, last do
        local value = redis.call('HGET', ended, ARGV[i])
        if value then
            redis.call('HSET', live, ARGV[i], row_of(value))
            redis.call('HDEL', ended, ARGV[i])
        end
    end
end

-- Ended tasks that end otherwise. Arguments: task, how it ended; and so on.
local function end_again(ended, first, last)
    for i = first, last, 2 do
        local value = redis.call('HGET', ended, ARGV[i])
        if value then
            redis.call('HSET', ended, ARGV[i], ARGV[i + 1] .. row_of(value))
        end
    end
end

-- A failed attempt more; the first and the newest are kept. Arguments: how many; the attempt.
local function add_attempt(attempts, first)
    local length = redis.call('RPUSH', attempts, ARGV[first + 1])
    if length > tonumber(ARGV[first]) then
        local oldest = redis.call('LPOP', attempts)
        redis.call('LPOP', attempts)
        redis.call('LPUSH', attempts, oldest)
    end
end

-- Places of tasks. A segment is made in its full size, because a string that grows takes twice
-- the room. Arguments: key number of the segments that are there; the segment; its last
-- offset; then a command that writes the places, and its arguments.
local function set_places(segment, base, first, last)
    if redis.call('EXISTS', segment) == 0 then
        redis.call('SETRANGE', segment, ARGV[first + 2], '\0\0\0\0')
        redis.call('ZADD', key_at(base, ARGV[first]), ARGV[first + 1], ARGV[first + 1])
    end
    redis.call(ARGV[first + 3], segment, unpack(ARGV, first + 4, last))
end

-- Places of tasks that are gone. A segment of nothing but zeros is dropped.
-- Arguments: key number of the segments that are there; the segment; then what is set to zero.
local function clear_places(segment, base, first, last)
    redis.call('BITFIELD', segment, unpack(ARGV, first + 2, last))
    if redis.call('BITPOS', segment, 1) == -1 then
        redis.call('UNLINK', segment)
        redis.call('ZREM', key_at(base, ARGV[first]), ARGV[first + 1])
    end
end

-- Whether a field that is said to be new is there. Arguments of 'new': the fields.
local function knows_a_new_one(base, from)
    local at, past = from, #ARGV
    while at < past do
        local first = at + 3
        local last = at + 2 + tonumber(ARGV[at + 2])
        if ARGV[at] == 'new' then
            for _, value in ipairs(redis.call('HMGET', key_at(base, ARGV[at + 1]), unpack(ARGV, first, last))) do
                if value then
                    return true
                end
            end
        end
        at = last + 1
    end
    return false
end

local function run(base, from)
    local at, past = from, #ARGV
    while at < past do
        local op, key = ARGV[at], key_at(base, ARGV[at + 1])
        local first = at + 3
        local last = at + 2 + tonumber(ARGV[at + 2])
        if op == 'end' then
            end_tasks(key, base, first, last)
        elseif op == 'again' then
            end_again(key, first, last)
        elseif op == 'revive' then
            revive_tasks(key, base, first, last)
        elseif op == 'attempt' then
            add_attempt(key, first)
        elseif op == 'place' then
            set_places(key, base, first, last)
        elseif op == 'clear' then
            clear_places(key, base, first, last)
        elseif op ~= 'new' then
            redis.call(op, key, unpack(ARGV, first, last))
        end
        at = last + 1
    end
end
