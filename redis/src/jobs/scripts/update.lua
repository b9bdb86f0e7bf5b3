-- Carries out a batch of operations on jobs of one partition that are there already. It runs also when Redis is out of memory.
-- ARGV, from the third on, for each job: operation, id, token, first number, second number.
-- Returns a digit for each job: 1 where it was done, 0 where the job was not as the operation wants it.
--
-- Starts and dones, which every job needs, are carried out together: a few commands for all of a batch.
if is_repeated then return last_reply end
if is_late then return refuse() end

local answers = {}

-- Starts or dones that are yet to be carried out, and which operations of the batch they are.
local which, ids, tokens, leases, places = nil, {}, {}, {}, {}

local function carry_out()
  if not which then return end
  local set = which == 'start' and claimed or running
  local states = call('HMGET', state, unpack(ids))
  local ends = call('ZMSCORE', set, unpack(ids))
  local held, scores, after = {}, {}, {}
  for n, id in ipairs(ids) do
    local owner, attempts, at = match(states[n] or '', '^(%S+) (%d+) (%d+)$')
    local till = ends[n]
    if owner == tokens[n] and till and tonumber(till) > now then
      held[#held + 1] = id
      answers[places[n]] = '1'
      if which == 'start' then
        scores[#scores + 1] = exact(now + leases[n])
        scores[#scores + 1] = id
        after[#after + 1] = id
        after[#after + 1] = owner .. ' ' .. exact(attempts + 1) .. ' ' .. at
      end
    else
      answers[places[n]] = '0'
    end
  end
  if held[1] then
    call('ZREM', set, unpack(held))
    if which == 'start' then
      call('ZADD', running, unpack(scores))
      call('HSET', state, unpack(after))
    else
      call('HDEL', state, unpack(held))
      call('HDEL', payload, unpack(held))
    end
  end
  which, ids, tokens, leases, places = nil, {}, {}, {}, {}
end

-- Every other operation, of which a batch has few.
local wake = false
local others

local function other_operations()
  local operations = {}

  -- The attempts and due time of a job that `token` holds in `set` under a lease that lasts.
  local function held(set, id, token)
    local owner, attempts, at = read(id)
    if owner ~= token then return nil end
    local till = call('ZSCORE', set, id)
    if not till or tonumber(till) <= now then return nil end
    return attempts, at
  end

  -- The same, and the job is in that set no longer.
  local function take_from(set, id, token)
    local attempts, at = held(set, id, token)
    if attempts then call('ZREM', set, id) end
    return attempts, at
  end

  local function wait(id, attempts, at)
    call('ZADD', due, at, id)
    if attempts == '0' then
      call('HDEL', state, id)
    else
      write(id, '-', attempts, at)
    end
    -- Workers look again when there is another first one.
    if call('ZRANGE', due, 0, 0)[1] == id then wake = true end
  end

  local function bury(id, attempts, at)
    call('ZADD', dead, exact(now), id)
    write(id, '-', attempts, at)
  end

  local function forget(id)
    call('HDEL', state, id)
    call('HDEL', payload, id)
  end

  -- Takes back a start that was never seen.
  function operations.unstart(id, token)
    local attempts, at = take_from(running, id, token)
    if not attempts then return false end
    wait(id, exact(attempts - 1), at)
    return true
  end

  function operations.release(id, token)
    local attempts, at = take_from(claimed, id, token)
    if not attempts then return false end
    wait(id, attempts, at)
    return true
  end

  function operations.renew(id, token, lease)
    for _, set in ipairs({ running, claimed }) do
      if held(set, id, token) then
        call('ZADD', set, exact(now + lease), id)
        return true
      end
    end
    return false
  end

  function operations.bury(id, token)
    local attempts, at = take_from(running, id, token)
    if not attempts then return false end
    bury(id, attempts, at)
    return true
  end

  function operations.retry(id, token, delay, limit)
    local attempts, at = take_from(running, id, token)
    if not attempts then return false end
    if tonumber(attempts) >= limit then
      bury(id, attempts, at)
    else
      wait(id, attempts, exact(now + delay))
    end
    return true
  end

  -- Whether it waited.
  local function remove_waiting(id)
    return call('ZREM', due, id) == 1 or call('ZREM', claimed, id) == 1
  end

  function operations.cancel(id)
    if not remove_waiting(id) then return false end
    forget(id)
    return true
  end

  function operations.reschedule(id, _, delay)
    if not remove_waiting(id) then return false end
    local _, attempts = read(id)
    wait(id, attempts, exact(now + delay))
    return true
  end

  function operations.revive(id)
    if call('ZREM', dead, id) == 0 then return false end
    wait(id, '0', exact(now))
    return true
  end

  function operations.purge(id)
    if call('ZREM', dead, id) == 0 then return false end
    forget(id)
    return true
  end

  return operations
end

local place = 0
for at = 3, #ARGV, 5 do
  local operation, id, token = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  place = place + 1
  if operation == 'start' or operation == 'done' then
    if which ~= operation then carry_out() end
    which = operation
    local n = #ids + 1
    ids[n], tokens[n], leases[n], places[n] = id, token, ARGV[at + 3], place
  else
    -- In the order in which they were asked for.
    carry_out()
    others = others or other_operations()
    local done = others[operation](id, token, tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]))
    answers[place] = done and '1' or '0'
  end
end
carry_out()
local reply = table.concat(answers)
remember(reply)
if wake then call('PUBLISH', channel, '') end
return reply
